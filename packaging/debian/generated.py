"""Writes what the package has of Paddock's own making: units and completions. The argument is the package's tree."""

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

from launcher.service import units
from launcher.verbs.completion import completion

usr = Path(sys.argv[1], "usr")
for scope in units.Scope:
    directory = usr / "lib/systemd" / scope.value
    for file in units.render(scope, units.PACKAGED, directory, usr / "lib/tmpfiles.d"):
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.content)
for shell, name in (
    ("bash", "bash-completion/completions/paddock"),
    ("zsh", "zsh/vendor-completions/_paddock"),
    ("fish", "fish/vendor_completions.d/paddock.fish"),
):
    path = usr / "share" / name
    path.parent.mkdir(parents=True)
    with redirect_stdout(io.StringIO()) as text:
        completion(shell)
    path.write_text(text.getvalue())
