"""A command with a private git directory attacks the repository that it works for, from inside the jail."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import private_git, repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

TOKEN = "s3cret-t0ken"

# Every line must fail; a line that works is named in the answer.
ATTACKS = """
cat $STORE/config
grep -r s3cret-t0[k]en $STORE . $HOME /tmp $(git rev-parse --absolute-git-dir)
git --git-dir=$STORE log
cat $STORE/worktrees/two/HEAD
cat $MAIN/../two/README.md
echo evil >$STORE/hooks/post-checkout
echo evil >>$STORE/config
echo evil >$STORE/HEAD
echo evil >$STORE/packed-refs
echo evil >$STORE/refs/heads/evil
echo $(git rev-parse HEAD) >$STORE/refs/heads/main
rm $STORE/refs/heads/two
git --git-dir=$STORE update-ref refs/heads/evil HEAD
git --git-dir=$STORE config core.fsmonitor evil
git --git-dir=$STORE gc
git --git-dir=$STORE worktree prune
echo evil >$STORE/worktrees/two/HEAD
echo evil >$STORE/worktrees/two/index
echo evil >$STORE/worktrees/one/commondir
echo evil >$OBJECTS/info/alternates
rm $OBJECTS/$OBJECT
truncate -s 0 $OBJECTS/$OBJECT
chmod 777 $OBJECTS/$OBJECT
touch $OBJECTS/$OBJECT
echo evil >$OBJECTS/pack/evil.pack
mkdir $OBJECTS/zz
ln $OBJECTS/$OBJECT taken && rm taken
mv $OBJECTS $OBJECTS.away
rm -rf .git
mv .git away
ln -sf $MAIN/../two/.git .git
rm -rf library/.git
mount --bind . $STORE
git push $STORE HEAD:refs/heads/evil
git push origin HEAD:refs/heads/evil
"""

PROGRAM = r"""
ask() { printf '%s\n' "$1"; }
OBJECTS=${OBJECTS:-$(cat "$STORE/objects/info/alternates")}
while IFS= read -r line; do
    [ -z "$line" ] || { (eval "$line") >/dev/null 2>&1 </dev/null && printf '%s\n' "$line" >>"$TMPDIR/worked"; }
done <"$ATTACKS"
[ ! -s "$TMPDIR/worked" ] || cat "$TMPDIR/worked"
echo ready
read -r go
git fsck --strict --no-dangling || exit 7
echo work >work && git add work && git commit -qm 'agent: Work.' || exit 8
git log --oneline >/dev/null && git -C library log >/dev/null || exit 9
"""


@pytest.fixture(params=["linked", "main"])
def attacked(request: pytest.FixtureRequest, user: Who, installed: Installed, public_dir: Path) -> Iterator[Paddock]:
    """The command, in a worktree with a submodule, whose repository has a token in its configuration."""
    need("landlock")
    need("userns")
    place = public_dir / "attacked"
    place.mkdir()
    repo = repository.make(user, user.give(place))
    repo.git("config", "remote.origin.url", f"https://user:{TOKEN}@example.invalid/x.git")
    repo.git("config", "http.https://example.invalid/.extraHeader", f"Authorization: {TOKEN}")
    repo.git("config", "filter.evil.clean", f"touch {place}/canary")
    repo.git("config", "core.autocrlf", "false")
    yield Paddock(user, installed, place, repo.one if request.param == "linked" else repo.main, repo.main)
    shutil.rmtree(place)


def test_the_repository_is_out_of_reach_and_gc_takes_nothing_from_the_agent(attacked: Paddock) -> None:
    """No attack works, not one bit changes outside the own branch, and work goes on while the repository is packed."""
    store = attacked.main / ".git"
    linked = attacked.worktree != attacked.main
    # What the user's own gc may change, too.
    own: tuple[str, ...] = ("objects", "packed-refs", "info/refs", "refs", "logs", "modules/library/refs/paddock")
    own += ("worktrees/one", "worktrees/two/logs") if linked else ("index", "worktrees/one/logs", "worktrees/two/logs")
    script = attacked.place / "attacks"
    blob = attacked.who.run(["git", "rev-parse", "HEAD:README.md"], cwd=attacked.main).stdout.strip()
    # At the main checkout's .git the jail shows the private directory, which the agent may break as he likes.
    lines = [
        line
        for line in ATTACKS.splitlines()
        if linked or "t0[k]en" in line or "$OBJECTS" in line or "two/README" in line
    ]
    script.write_text("\n".join(line for line in lines if linked or "$STORE/" not in line) + "\n")
    attacked.who.give(script)
    environment = [
        f"STORE={store}", f"MAIN={attacked.main}", f"OBJECTS={store}/objects" if linked else "OBJECTS=",
        f"ATTACKS={script}", f"OBJECT={blob[:2]}/{blob[2:]}",
    ]  # fmt: skip
    options = [word for variable in environment for word in ("--env", variable)]
    words = attacked.words("run", "--git", "private", "--ro", str(script), *options, "--", "sh", "-c", PROGRAM)
    before = private_git.tree_state(store, ignore=own)
    refs = attacked.who.run(["git", "for-each-ref"], cwd=attacked.main).stdout
    with attacked.who.start(words, cwd=attacked.worktree) as session:
        assert session.stdout is not None
        worked = []
        while (line := session.stdout.readline().decode()) not in ("ready\n", ""):
            worked.append(line)
        meanwhile = private_git.tree_state(store, ignore=own)
        # Outside, what nobody names any more is pruned meanwhile.
        for git in (["reflog", "expire", "--expire=now", "--all"], ["gc", "-q", "--prune=now"]):
            assert attacked.who.run(["git", *git], cwd=attacked.main).returncode == 0
        out, err = session.communicate(b"go\n", timeout=60)
    assert worked == [], worked
    assert session.returncode == 0, (out, err)
    assert meanwhile == before
    assert b"harvested" in err
    assert private_git.tree_state(store, ignore=own) == before
    after = attacked.who.run(["git", "for-each-ref"], cwd=attacked.main).stdout
    branch = attacked.who.run(["git", "symbolic-ref", "HEAD"], cwd=attacked.worktree).stdout.strip()
    changed = set(after.splitlines()) ^ set(refs.splitlines())
    assert {line.split("\t")[1] for line in changed if "refs/paddock/" not in line} == {branch}
    assert attacked.who.run(["git", "status", "--porcelain"], cwd=attacked.worktree).stdout == ""
    assert attacked.who.run(["git", "fsck", "--strict", "--no-dangling"], cwd=attacked.worktree).returncode == 0
    assert not (attacked.place / "canary").exists()


def test_an_agent_cannot_choose_what_the_user_s_git_runs(attacked: Paddock) -> None:
    """Hooks, monitors and drivers that a session configures run inside; the user's git never hears of them."""
    canary = attacked.worktree / "canary"
    planted = f"""
        for hook in pre-commit post-checkout post-index-change; do
            printf '#!/bin/sh\\necho ran >>"{canary}"\\n' >"$(git rev-parse --git-path hooks)/$hook"
            chmod +x "$(git rev-parse --git-path hooks)/$hook"; done
        git config core.fsmonitor 'echo ran >>"{canary}"'; git config alias.st '!echo ran'
        echo '* diff=evil' >.gitattributes; git config diff.evil.textconv 'echo ran >>"{canary}"; cat'
        echo work >work && git add .gitattributes work && git commit -qm 'agent: Work.'; test -s canary || exit 5
        rm -f canary
    """
    ended = attacked.run("--git", "private", "--report", str(attacked.place / "report"), "--", "sh", "-c", planted)
    assert ended.returncode == 0, ended.stderr
    assert "harvested" in ended.stderr
    canary.unlink(missing_ok=True)
    for words in (["status"], ["diff", "HEAD^"], ["log", "-p", "-1"], ["checkout", "-q", "-b", "user"], ["gc", "-q"]):
        assert attacked.who.run(["git", *words], cwd=attacked.worktree).returncode == 0
    assert not canary.exists()
    handoff = json.loads((attacked.place / "report").read_text())["harvest"]["handoff"]
    assert ["created", ".gitattributes", "report"] in handoff
    # Nor what the next session gets to read: that mode would show it the repository's own configuration.
    asked = """printf '[git]\\nmode = "readonly"\\n' >.paddock.toml"""
    assert attacked.run("--", "sh", "-c", asked).returncode == 0
    said = attacked.refused("run", "--", "git", "config", "remote.origin.url")
    assert (said.reference, "git.mode: readonly instead of auto" in said.text) == ("config-untrusted", True)
