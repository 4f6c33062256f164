"""A browser runs in a jail, with its own sandbox off: that one wants namespaces, which the jail keeps closed."""

from pathlib import Path

import pytest

from policy import promises
from tests.support.features import need
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed, base_python
from tests.support.programs.scene import Scene
from tests.support.repository import Repo

PAGE = """<!doctype html><title>page</title><body style="background:#123456"><h1 id="x">plain</h1>
<script>document.getElementById("x").textContent = "computed " + 6 * 7;</script></body>"""

# Serves the page on the jail's own loopback, and has a browser fetch it.
SERVED = """
import http.server, subprocess, sys, threading
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/page.html"
sys.exit(subprocess.run(["chromium", "--headless", "--no-sandbox", "--dump-dom", url], timeout=100).returncode)
"""


@pytest.fixture(params=promises.BACKENDS)
def scene(request: pytest.FixtureRequest, who: Who, installed: Installed, repo: Repo, public_dir: Path) -> Scene:
    """A worktree with a page, for one backend and one identity."""
    need("chromium")
    scene = Scene.make(who, installed, repo, request.param, public_dir)
    (scene.area / "page.html").write_text(PAGE)
    scene.own(scene.area)
    return scene


def test_a_browser_paints_a_page(scene: Scene) -> None:
    """A screenshot of a file: renderers, shared memory, fonts, and no bus, no display, no device."""
    words = ["chromium", "--headless", "--no-sandbox", "--window-size=320,200", "--screenshot=shot.png"]
    ended = scene.run([*words, f"file://{scene.area}/page.html"])
    assert ended.returncode == 0, ended.stderr
    image = (scene.area / "shot.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n")
    assert (int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")) == (320, 200)


@AS_A_USER
def test_a_browser_runs_the_scripts_of_a_page_from_a_server_in_the_jail(scene: Scene) -> None:
    """Over the jail's own loopback; where there is none, because there are no namespaces, from a file."""
    words = [str(base_python()), "-I", "-c", SERVED]
    if not promises.has_mounts(scene.backend):
        words = ["chromium", "--headless", "--no-sandbox", "--dump-dom", f"file://{scene.area}/page.html"]
    ended = scene.run(words)
    assert ended.returncode == 0, ended.stderr
    assert '<h1 id="x">computed 42</h1>' in ended.stdout


@AS_A_USER
def test_the_browsers_own_sandbox_is_closed(scene: Scene) -> None:
    """It says so and ends: the twin, without the option that the recipe names."""
    ended = scene.run(["chromium", "--headless", "--dump-dom", f"file://{scene.area}/page.html"])
    assert ended.returncode != 0
    assert "sandbox" in ended.stderr.lower()
