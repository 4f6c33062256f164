"""What a `[review]` of a ticket run, and `merge --check`, see of a commit: all of it, and as it is."""

from tests.kernel.test_service_tickets import COMMIT, git, run, running, service, ticket
from tests.support.served import Served

__all__ = ["running", "service"]


def test_no_file_of_settings_of_a_commit_bounds_its_review(service: Served) -> None:
    """It could deny a review what it is to see: one that is not the trunk's is for a person to read. So is one that
    the review's own `--config` names, in the commit itself or behind a link there.
    """
    main, judge = service.paddock.main, ["sh", "-c", "! grep -qrs EVIL . --exclude-dir=.git"]
    denies = "printf '[filesystem]\\ndeny = [\"evil\"]\\n'"
    evil = f"mkdir evil; echo EVIL > evil/evil; {COMMIT} evil"
    tickets = [ticket("X-1", f"{denies} > .paddock.toml; {evil}"), ticket("X-2", f"echo fine > fine; {COMMIT} fine")]
    done = run(service, *tickets, review={"command": judge})
    assert done["result"]["agents"][0]["review"]["refusal"]["errorType"] == "config-unread", done
    assert ((main / "evil").exists(), (main / "fine").exists()) == (False, True)
    shown = service.cli("tickets", "show", done["name"]).stdout
    assert ("[config-unread]\n" in shown, "hint: read it; commit it" in shown, "paddock logs" in shown) == (
        True, True, False
    ), shown  # fmt: skip
    checked = service.cli("merge", "agent/X-1", "--check", judge[2])
    assert (checked.returncode, "its .paddock.toml is not the trunk's" in checked.stdout) == (1, True), checked
    # Once it is the trunk's, it is somebody's own word; and it bounds all reviews.
    made = "echo '[filesystem]' > ci/r.toml; echo '[filesystem]' > ci/s.toml"
    settings = f"mkdir ci; {made}; {denies} > .paddock.toml; {COMMIT} settings"
    assert service.paddock.who.run(["sh", "-c", settings], cwd=main).returncode == 0
    done = run(
        service,
        ticket("O-1", f"{denies} > ci/r.toml; {evil}"),
        ticket("O-2", f"mv ci of; ln -s of ci; {denies} > of/r.toml; {evil}"),
        ticket("O-3", f"{denies} > ci/s.toml; echo fine > other; {COMMIT} fine"),
        ticket("X-3", "git rm -q --cached .paddock.toml; git -c user.name=A -c user.email=a@b.c commit -q -m without"),
        review={"options": ["--config", "ci/r.toml"], "command": judge},
    )
    reviews = [each["review"] for each in done["result"]["agents"]]
    refused = [(each["refusal"] or {}).get("errorType") for each in reviews]
    assert refused == ["config-unread", "config-unread", None, "config-unread"], done
    assert "its ci/r.toml is not the trunk's" in reviews[0]["refusal"]["message"]
    assert ((main / "evil").exists(), (main / "other").exists()) == (False, True)


BEFORE = "git reset -q --hard $(git log --format=%H -1 --grep=Bad)"


def test_no_commit_chooses_what_its_review_is_compared_with(service: Served) -> None:
    """What was in the trunk's past is nobody's word today. Who begins there and merges the trunk has the trunk's."""
    main = service.paddock.main
    bad = "printf '[filesystem]\\ndeny = [\"evil\"]\\n' > .paddock.toml; echo 'evil ident' > .gitattributes"
    judge = {"command": ["sh", "-c", "! grep -qrs EVIL . --exclude-dir=.git"]}
    back = f"{bad}; {COMMIT} Bad; git rm -q .paddock.toml .gitattributes; {COMMIT} Good"
    done = run(service, ticket("B-1", back), review=judge)
    assert (done["state"], "Bad" in git(service, "log", "--format=%s")) == ("ended", True), done
    evil = f"echo EVIL > evil; {COMMIT} evil"
    tickets = [
        ticket("B-2", f"{BEFORE}; git rm -q .gitattributes; {evil}"),
        ticket("B-3", f"{BEFORE}; git rm -q .paddock.toml; {evil}"),
        ticket("B-4", f"now=$(git rev-parse HEAD); {BEFORE}; git merge -q $now; echo fine > fine; {COMMIT} fine"),
    ]
    done = run(service, *tickets, review=judge)
    reviews = [each["review"] for each in done["result"]["agents"]]
    refused = [(each["refusal"] or {}).get("errorType") for each in reviews]
    assert refused == ["config-unread", "content-disguised", None], done
    assert [(main / name).exists() for name in ("evil", "fine")] == [False, True]


SPARSE = """
mkdir src other; echo a > src/a; echo b > other/b; ln -s a src/link; git add .; git commit -q -m Files
git config core.symlinks false; git config core.autocrlf true; git sparse-checkout set src
"""


def test_a_review_sees_all_of_a_commit_as_it_is(service: Served) -> None:
    """Whatever the user's own checkout leaves out or converts."""
    main = service.paddock.main
    assert service.paddock.who.run(["sh", "-euc", SPARSE], cwd=main).returncode == 0

    def adds(name: str) -> str:
        entry = f"100755,$(echo {name} | git hash-object -w --stdin),other/{name}"
        return f"git update-index --add --cacheinfo {entry}; git -c user.name=A -c user.email=a@b.c commit -q -m {name}"

    sees = "test -L src/link -a -f other/b && grep -qx a src/a && ! grep -qrs EVIL . --exclude-dir=.git"
    tickets = [ticket("S-1", adds("EVIL")), ticket("S-2", adds("fine"))]
    done = run(service, *tickets, review={"command": ["sh", "-c", sees]})
    assert [each["review"]["status"] for each in done["result"]["agents"]] == [1, 0], done
    assert git(service, "ls-tree", "--name-only", "HEAD:other").split() == ["b", "fine"]
    checked = service.cli("merge", "agent/S-1", "--check", sees)
    assert (checked.returncode, "the check failed with exit status 1" in checked.stdout) == (1, True), checked


def test_no_attribute_of_a_commit_disguises_it(service: Served) -> None:
    """It is for a person to read. Line ends and what is in Git LFS are everybody's, and the trunk's own rules hold."""
    main = service.paddock.main
    as_is = "git hash-object -w --stdin --no-filters"
    evil = f"git add .gitattributes; git update-index --add --cacheinfo 100755,$(echo EVIL | {as_is}),evil"
    commits = "git -c user.name=A -c user.email=a@b.c commit -q -m"
    judge = "! grep -qrs EVIL . --exclude-dir=.git"
    done = run(
        service,
        ticket("G-1", f"echo 'evil working-tree-encoding=UTF-16' > .gitattributes; {evil}; {commits} evil"),
        ticket("G-2", f"printf '[attr]odd ident\\nevil odd\\n' > .gitattributes; {evil}; {commits} evil"),
        ticket("G-3", f"printf '* text=auto\\n*.bat eol=crlf\\n*.bin filter=lfs\\n' > .gitattributes; {COMMIT} fine"),
        review={"command": ["sh", "-c", judge]},
    )
    agents = done["result"]["agents"]
    refused = [(each["review"]["refusal"] or {}).get("errorType") for each in agents]
    assert (refused, (main / "evil").exists()) == (["content-disguised"] * 2 + [None], False), done
    assert (main / ".gitattributes").read_text().startswith("* text=auto")
    checked = service.cli("merge", "agent/G-2", "--check", judge)
    assert (checked.returncode, "it sets ident for evil" in checked.stdout) == (1, True), checked
    own = f"echo '*.rc working-tree-encoding=UTF-16' > .gitattributes; {COMMIT} own"
    assert service.paddock.who.run(["sh", "-c", own], cwd=main).returncode == 0
    work = f"echo '*.h diff=cpp' >> .gitattributes; echo a | iconv -t UTF-16 > a.rc; {COMMIT} fine"
    done = run(service, ticket("G-4", work), review={"command": ["sh", "-c", "iconv -f UTF-16 a.rc | grep -x a"]})
    assert (done["state"], (main / "a.rc").exists()) == ("ended", True), done


NESTED = """
git() { command git -c user.name=U -c user.email=u@u.u "$@"; }
git init -q -b main ../lib; echo good > ../lib/code; git -C ../lib add .; git -C ../lib commit -q -m Lib
git -c protocol.file.allow=always submodule --quiet add "$(realpath ../lib)" lib
git update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,far; git commit -q -m Nested
"""


def test_a_review_sees_each_submodule_that_moved(service: Served) -> None:
    """Whatever `.gitmodules` says. One that nobody has fetched, and that the commit leaves alone, is no obstacle."""
    main = service.paddock.main
    assert service.paddock.who.run(["sh", "-euc", NESTED], cwd=main).returncode == 0
    commits = "git -c user.name=A -c user.email=a@b.c commit -q -a -m"
    evil = f"(cd lib; echo EVIL >> code; {commits} evil); git add lib"
    unnamed = f"git rm -q --cached .gitmodules; rm .gitmodules; {commits}"
    judge = "if grep -qrs EVIL . --exclude-dir=.git; then exit 9; fi; grep -qx good lib/code"
    done = run(
        service,
        ticket("M-1", f"{evil}; {unnamed} evil"),
        ticket("M-2", f"(cd lib; echo fine >> code; {commits} fine); {commits} fine"),
        review={"command": ["sh", "-c", judge]},
    )
    assert [each["review"]["status"] for each in done["result"]["agents"]] == [9, 0], done
    assert ((main / "lib/code").read_text(), (main / ".gitmodules").exists()) == ("good\nfine\n", True)
    # With the name gone from the commit alone, the trunk's name still finds it.
    done = run(service, ticket("M-3", f"{unnamed} fine"), review={"command": ["sh", "-c", judge]})
    assert (done["state"], (main / ".gitmodules").exists()) == ("ended", False), done
