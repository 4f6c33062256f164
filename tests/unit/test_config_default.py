"""The shipped default and the example: data that other code believes."""

import re
import tomllib
from pathlib import Path

import policy
from policy import config
from policy.config import layer, settings, values
from policy.config.layer import Kind
from policy.config.values import Base

PACKAGE = Path(policy.__file__).parent
DEFAULT = settings.resolve([layer.shipped()])
TEMPLATE = Path(config.__file__).with_name("template.toml").read_text(encoding="utf-8")

SECRET_PATHS = [
    "/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers", "/etc/sudoers.d/x", "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/sshd_config", "/etc/ssl/private/key.pem", "/etc/pki/tls/private/key.pem", "/etc/NetworkManager/x",
    "/etc/wireguard/wg0.conf", "/etc/krb5.keytab", "/etc/docker/key.json", "/etc/kubernetes/admin.conf",
    "/etc/environment", "/etc/gitconfig", "/etc/fstab", "/etc/apt/auth.conf", "/etc/pip.conf", "/etc/npmrc",
    "/etc/machine-id", "/etc/paddock/config.toml", "/etc/security/opasswd", "/etc/openvpn/x", "/etc/letsencrypt/x",
    "/etc/postgresql/x", "/etc/php/8.2/fpm/pool.d/www.conf", "/etc/cron.d/x", "/etc/rancher/x",
    "/root/.ssh/id_ed25519", "/home/u/.ssh/id_ed25519", "/var/lib/x", "/var/run/docker.sock", "/run/docker.sock",
    "/run/user/1000/bus", "/boot/x", "/srv/x", "/mnt/x", "/media/x", "/opt/gitlab/etc/gitlab.rb", "/tmp/x",
    "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/uinput", "/dev/input/event0", "/dev/fuse",
    "/sys/kernel/debug/x", "/sys/firmware/efi/x", "/sys/class/dmi/id/product_uuid",
]  # fmt: skip

ORDINARY_PATHS = [
    "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/resolv.conf", "/etc/localtime",
    "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ld.so.cache", "/etc/ld.so.conf.d/x.conf", "/etc/alternatives/cc", "/etc/mime.types", "/etc/os-release",
    "/etc/java-21-openjdk/security/java.security", "/etc/python3.13/sitecustomize.py", "/etc/profile.d/x.sh",
    "/etc/php/8.2/cli/php.ini", "/usr/bin/python3", "/bin/sh", "/lib64/ld-linux-x86-64.so.2", "/nix/store/x",
    "/dev/null", "/dev/urandom", "/proc/self/status", "/sys/fs/cgroup/cpu.max", "/sys/devices/system/cpu/online",
]  # fmt: skip


def granted(path: str) -> bool:
    """Whether any pattern of the shipped [system] stands for `path` or something above it."""
    patterns = [entry.value for entry in (*DEFAULT.read_trees, *DEFAULT.etc_files, *DEFAULT.kernel_files)]
    patterns += [entry.value[0] for entry in DEFAULT.devices]
    parts = path.split("/")
    for pattern in patterns:
        wanted = pattern.split("/")
        if len(wanted) <= len(parts) and all(settings.fits(w, p) for w, p in zip(wanted, parts, strict=False)):
            return True
    return False


def test_no_secret_of_the_machine_is_granted() -> None:
    """A root caller can read everything, so the list itself must leave them out."""
    assert [path for path in SECRET_PATHS if granted(path)] == []


def test_what_ordinary_programmes_read_is_granted() -> None:
    """The twin: loader, names, time, certificates, interpreters."""
    assert [path for path in ORDINARY_PATHS if not granted(path)] == []


def test_the_safest_modes_are_the_default() -> None:
    """Nothing is granted, opened or passed that nobody asked for."""
    assert (DEFAULT.network_mode.value, DEFAULT.git_mode.value) == ("auto", "auto")
    assert DEFAULT.server_name.value == "match"
    assert (DEFAULT.backend.value, DEFAULT.provider.value, DEFAULT.dialect.value) == ("auto", "auto", "native")
    assert not DEFAULT.keep_prompts.value
    assert not DEFAULT.read + DEFAULT.write + DEFAULT.deny + DEFAULT.allow_domains + DEFAULT.submodules
    assert not DEFAULT.reach + DEFAULT.deny_domains
    assert DEFAULT.freeze_root.value is False
    assert all(str(entry.source) == "default" for entry in (*DEFAULT.env_pass, *DEFAULT.read_trees, DEFAULT.git_mode))


def test_no_secret_and_no_loader_variable_passes_by_default() -> None:
    """Language, terminal and user only."""
    patterns = [re.compile(entry.value.replace("*", ".*")) for entry in DEFAULT.env_pass]
    leaks = (
        *values.DANGEROUS_NAMES, "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "GIT_DIR",
        "GIT_SSH_COMMAND", "BASH_FUNC_x%%", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ANTHROPIC_API_KEY", "HTTPS_PROXY",
    )  # fmt: skip
    assert [name for name in leaks if any(pattern.fullmatch(name) for pattern in patterns)] == []
    for name in ("PATH", "LANG", "LC_ALL", "TZ", "TERM", "NO_COLOR", "CLICOLOR_FORCE", "USER", "SHELL"):
        assert any(pattern.fullmatch(name) for pattern in patterns), name


def test_agent_configuration_is_protected_and_workflows_are_reported() -> None:
    """Each file has one mode."""
    protect = {entry.value for entry in DEFAULT.handoff_protect}
    report = {entry.value for entry in DEFAULT.handoff_report}
    assert {
        ".paddock.toml",
        ".envrc",
        ".vscode/tasks.json",
        ".mcp.json",
        ".claude/settings.json",
        ".git/hooks",
    } <= protect
    assert {".github/workflows", "package.json", "Makefile", "setup.py", ".pre-commit-config.yaml"} <= report
    assert not protect & report


def test_devices_have_no_more_access_than_they_need() -> None:
    """No tree of devices but the pseudo terminals and shared memory."""
    assert {name for name, _ in (entry.value for entry in DEFAULT.devices)} == {
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts",
        "/dev/shm",
    }  # fmt: skip


def test_the_example_sets_nothing() -> None:
    """Writing it changes no rule."""
    example = layer.parse(TEMPLATE.encode(), Kind.PROJECT, "x", Base("/p", "/h"), trusted=False)
    assert settings.resolve([layer.shipped(), example]).as_dict() == DEFAULT.as_dict()


def test_the_example_is_valid_with_every_line_switched_on() -> None:
    """And then it shows every key that a project can set."""
    text = re.sub(r"^# (\w+ = )", r"\1", TEMPLATE, flags=re.MULTILINE)
    layer.parse(text.encode(), Kind.PROJECT, "x", Base("/p", "/h"))
    shown = tomllib.loads(text)
    for name in layer.known_keys(()):
        if name not in ("schema", "system"):
            assert set(shown[name]) == set(layer.known_keys((name,))), name


def test_no_shipped_file_names_a_key_twice() -> None:
    """Entries of the lists are unique, so that each has one line and one reason."""
    document = tomllib.loads((PACKAGE / "default.toml").read_text(encoding="utf-8"))
    for table in document.values():
        for entries in table.values() if isinstance(table, dict) else ():
            if isinstance(entries, list):
                assert len(entries) == len(set(entries))
