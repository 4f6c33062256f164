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
sys.exit(subprocess.run([*sys.argv[1:], url], timeout=100).returncode)
"""

SHOWING = ("chromium", "--headless", "--no-sandbox", "--window-size=320,200", "--screenshot=shot.png", "--dump-dom")


@pytest.fixture(params=[promises.NAMESPACES, promises.GUARD])  # with mounts and without
def scene(request: pytest.FixtureRequest, who: Who, installed: Installed, repo: Repo, public_dir: Path) -> Scene:
    """A worktree with a page, for one backend and one identity."""
    need("chromium")
    scene = Scene.make(who, installed, repo, request.param, public_dir)
    (scene.area / "page.html").write_text(PAGE)
    scene.own(scene.area)
    return scene


@AS_A_USER
def test_a_browser_paints_a_page_and_has_no_sandbox_of_its_own(scene: Scene) -> None:
    """Renderers, shared memory, fonts, and no bus, no display, no device: the page comes from a server over the jail's
    own loopback; where there is none, because there are no namespaces, from a file. Without the option that the recipe
    names it says that its own sandbox is closed, and ends.
    """
    if promises.has_mounts(scene.backend):
        ended = scene.run([base_python(), "-I", "-c", SERVED, *SHOWING])
    else:
        ended = scene.run([*SHOWING, f"file://{scene.area}/page.html"])
    assert ended.returncode == 0, ended.stderr
    assert '<h1 id="x">computed 42</h1>' in ended.stdout
    image = (scene.area / "shot.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n")
    assert (int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")) == (320, 200)

    plain = scene.run(["chromium", "--headless", "--dump-dom", f"file://{scene.area}/page.html"])
    assert plain.returncode != 0
    assert "sandbox" in plain.stderr.lower()
