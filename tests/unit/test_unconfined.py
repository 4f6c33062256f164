"""What takes in bytes with all of the user's rights: `bench_house` finds it, a table says whose bytes they are."""

from tests.bench import bench_house

MOST = 24_004
"""Lines of the modules that read what an agent wrote. The goal is 12,000: docs/security.md says who reads what. What
`paddock trust` shows of a git directory counts here now (300 lines); it had counted as the user's own. Adapters
look at a command's first line and at links that it left, in another programme's process (270 lines). The
page looks at the end of a log (20 lines). A review has the names, kinds and sizes of changed files from git in a jail
(320 lines); their lines are read confined. What nodes of a cluster say of their tickets is checked word by word at both
ends (630 lines); git's part of that is in jails. Pointers and places are judged by what they say and by the record of
what sessions could write, not by where they lead now (100 lines). Before an index names a submodule, or one that has
lost its pointer gets it back, what lies there is looked at (150 lines). A checkout to be trusted is found as git
finds it, with all checkouts that its git directory has, and its indexes are read in a jail (190 lines). Which
directory was recorded is known by inode and birth. What is judged before a merge is laid
out whole, submodules and all (80 lines). What trees describe is counted in a jail's output before git walks it, and
sparse files are looked for (280 lines). Hand-off files are looked for whatever is ignored, and places of submodules in
other repositories of the user's (160 lines). The names of a worktree's directories are looked through for what `git
status` passes over (100 lines). What git and an agent's files list is taken one by one, and bounded (120 lines). Names
of an agent's refs are compared with the paths of a checkout and of what it brings (40 lines). Of a private git
directory it is known which operations are not finished, by the names that are there (40 lines). The name in an
annotated tag is compared with that of its ref (20 lines). Of an index
of a jail's, it is looked which one it shares; of a repository there, whether it has objects (100 lines, with what
stashes and moved submodules bring). Of ignored repositories the reflogs are looked at; what only a worktree's own git
directory has, which no agent writes, is asked of git (80 lines). Repositories are found among ignored files by whatever
name, and where a part's own pointer was; submodules are compared with what is staged, and each is asked what waits of
its sessions (50 lines). Refs that are there and name nothing are looked for in both git directories, and what logs say
of them; those that nothing but a log has, that are packed twice, or that lie beside HEAD (90 lines). The stores
that git makes in the git directories of a worktree's parts are all asked, and what git finds in the place of a
submodule, which it may have taken out itself; a session finds what it made there, too, and what is set aside
borrows from where it is kept (110 lines). A remote of such a store counts where it stays, with
objects of its own; commits that a checkout has left behind are looked for, in a jail, too, and repositories where git
makes none, or that borrow from what goes (130 lines)."""


def test_what_reads_an_agents_bytes_is_known_and_does_not_grow() -> None:
    """A module that begins to read needs a line in the table, and one that reads no more loses it. What reads has all
    of the user's rights, so what is added is better confined; and what counts as confined is imported by nobody else,
    or another process might read by it: each further importer has its reason.
    """
    modules = bench_house.modules()
    names = [name for group in bench_house.whose().values() for name in group]
    assert sorted(names) == sorted(bench_house.unconfined(modules))
    agents, *_ = bench_house.whose().values()
    assert sum(modules[name].lines for name in agents) <= MOST
    confined = bench_house.confined()
    assert confined <= modules.keys()
    importers = {name for name, module in modules.items() if module.imports & confined} - confined
    assert importers == set(bench_house.ENTRIES)
