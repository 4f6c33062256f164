"""What a grant would open, in one sentence per kind of file. Data, and the way to look it up. Pure."""

# (last components or parts of a path, what a grant would open); the first match is told.
RISKS: tuple[tuple[str, str], ...] = (
    ("/.ssh", "private keys: whoever holds them can log in to your servers and push as you"),
    ("/.gnupg", "private keys: whoever holds them can sign and decrypt as you"),
    ("/.aws", "cloud credentials"),
    ("/.azure", "cloud credentials"),
    ("/.config/gcloud", "cloud credentials"),
    ("/.kube", "cluster credentials"),
    ("/.docker", "registry credentials"),
    ("/.netrc", "passwords"),
    ("/.npmrc", "registry tokens"),
    ("/.pypirc", "registry tokens"),
    ("/.git-credentials", "passwords for git hosts"),
    ("/.config/gh", "a token for GitHub"),
    ("/etc/shadow", "password hashes of every user"),
    ("/etc/ssl/private", "private keys of this machine"),
    ("docker.sock", "whoever reaches the Docker daemon is root on this machine"),
    ("/run/user", "sockets of your desktop session: agents for keys, D-Bus, Wayland"),
    ("/.git/hooks", "programmes that git runs outside the jail"),
    ("/.git", "the repository itself: its config may hold tokens, its hooks run outside the jail"),
    ("/.bashrc", "programmes that your shell runs outside the jail"),
    ("/.profile", "programmes that your shell runs outside the jail"),
    ("/.zshrc", "programmes that your shell runs outside the jail"),
)

_WHOLE: dict[str, str] = {
    "/": "the whole machine",
    "/etc": "the machine's configuration, password hashes included",
    "/home": "the home directories of all users",
    "/tmp": "temporary files and sockets of every programme",
    "/var": "data, mail and queues of every service",
    "/run": "sockets of every service",
    "/usr": "programmes that everybody runs",
    "/proc": "memory, environment and descriptors of processes",
}
_ENVIRONMENT = "passwords and keys that a programme reads at its start"
_TEMPLATES = (".env.example", ".env.sample", ".env.template")
"""Shown to whoever fetches a repository: they name the secrets, and hold none."""
_A_HOME = "a whole home directory: keys, tokens, and files that your shell runs"


def of(path: str) -> str:
    """What a grant at `path` (absolute, canonical) would open; "" when nothing special is known."""
    for mark, risk in RISKS:
        if path.endswith(mark) or f"{mark}/" in path:
            return risk
    name = path.rpartition("/")[2]
    if (name == ".env" or name.startswith(".env.")) and name not in _TEMPLATES:
        return _ENVIRONMENT
    if path == "/root" or (path.startswith("/home/") and path.count("/") == 2):
        return _A_HOME
    return _WHOLE.get(path, "")
