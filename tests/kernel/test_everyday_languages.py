"""Everyday work with Node, npm, Java and Rust runs in a jail as it does without one."""

import shutil
from pathlib import Path

import pytest

from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support.identity import AS_A_USER
from tests.support.programs.scene import Scene


def put(scene: Scene, name: str, text: str) -> Path:
    """A file in the worktree."""
    path = scene.area / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    scene.own(path.parent)
    return path


NODE = """
const fs = require('fs'), os = require('os'), path = require('path'), net = require('net'), zlib = require('zlib');
const { execSync, spawn, fork } = require('child_process');
const { Worker } = require('worker_threads');
const assert = require('assert'), crypto = require('crypto');
const done = [];
const within = (name, work) => work().then(() => done.push(name));
async function files() {
  fs.mkdirSync('d/e', { recursive: true });
  await fs.promises.writeFile('d/e/f', 'x');
  fs.chmodSync('d/e/f', 0o600);
  fs.utimesSync('d/e/f', 5, 5);
  fs.copyFileSync('d/e/f', 'd/g');
  fs.symlinkSync('g', 'd/h');
  assert.deepStrictEqual(fs.readdirSync('d').sort(), ['e', 'g', 'h']);
  fs.rmSync('d', { recursive: true });
  fs.mkdtempSync(path.join(os.tmpdir(), 'x-'));
  fs.writeFileSync(path.join(os.homedir(), 'of-node'), 'x');
  await Promise.all(Array.from({ length: 50 }, (_, n) => fs.promises.readFile(__filename)));
}
async function watch() {
  const watcher = fs.watch('.');
  const seen = new Promise(resolve => watcher.once('change', resolve));
  setTimeout(() => fs.writeFileSync('watched', 'x'), 20);
  await seen;
  watcher.close();
}
async function children() {
  assert.strictEqual(execSync('echo hi').toString(), 'hi\\n');
  const child = spawn('cat', { stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.end('through');
  let text = '';
  for await (const block of child.stdout) text += block;
  assert.strictEqual(text, 'through');
  const forked = fork(__filename, ['child']);
  forked.send(20);
  assert.strictEqual(await new Promise(resolve => forked.once('message', resolve)), 21);
  forked.kill();
}
async function sockets() {
  const server = net.createServer(socket => socket.pipe(socket)).listen('node.sock');
  await new Promise(resolve => server.once('listening', resolve));
  const client = net.connect('node.sock');
  client.write('ping');
  assert.strictEqual((await new Promise(resolve => client.once('data', resolve))).toString(), 'ping');
  client.destroy();
  server.close();
}
async function workers() {
  const code = "require('worker_threads').parentPort.postMessage(new SharedArrayBuffer(8).byteLength)";
  const worker = new Worker(code, { eval: true });
  assert.strictEqual(await new Promise(resolve => worker.once('message', resolve)), 8);
  await worker.terminate();
}
async function calculation() {
  assert.strictEqual(zlib.gunzipSync(zlib.gzipSync('x')).toString(), 'x');
  await new Promise((resolve, reject) => crypto.scrypt('a', 'b', 16, error => error ? reject(error) : resolve()));
  assert(os.cpus().length >= 1 && os.totalmem() > 0 && os.userInfo().uid >= 0);
  await import('fs');
}
if (process.argv[2] === 'child') process.on('message', n => process.send(n + 1));
else (async () => {
  for (const work of [files, watch, children, sockets, workers, calculation]) await within(work.name, work);
  console.log('done ' + done.join(' '));
})();
"""


@AS_A_USER
@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_node_programmes(scene: Scene) -> None:
    """Files, watches, children, unix sockets, worker threads and the thread pool work."""
    put(scene, "node/work.js", NODE)
    ended = scene.run(["node", "work.js"], cwd=scene.area / "node")
    assert ended.stdout == "done files watch children sockets workers calculation\n", ended.stdout + ended.stderr


@pytest.mark.skipif(not shutil.which("npm"), reason="needs npm")
@pytest.mark.parametrize("scene_of_user", [promises.GUARD], indirect=True)  # which has most to say about files
def test_npm_runs_scripts_and_installs_a_local_package(scene_of_user: Scene) -> None:
    """npm run with pre and post scripts, npm pack and an offline npm install of the tarball."""
    scene = scene_of_user
    package = '{"name": "part", "version": "1.0.0", "main": "index.js", "bin": {"part": "index.js"}}'
    put(scene, "js/part/package.json", package)
    put(scene, "js/part/index.js", "#!/usr/bin/env node\nconsole.log('hello from a package');\n")
    scripts = '{"prebuild": "echo before", "build": "node -p 6*7", "postbuild": "part"}'
    put(scene, "js/package.json", '{"name": "whole", "version": "1.0.0", "scripts": ' + scripts + "}")
    program = """
    set -e
    (cd part && npm pack --silent --pack-destination ..)
    npm install --silent --offline --no-audit --no-fund ./part-1.0.0.tgz
    npm run --silent build
    """
    ended = scene.run(["sh", "-c", program], cwd=scene.area / "js", timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[-4:] == ["before", "42", "hello from a package", ""], ended.stdout


JAVA = """
import java.nio.file.*;
import java.util.concurrent.*;
import java.util.stream.*;
public class Work {
  public static void main(String[] words) throws Exception {
    Path file = Files.createTempFile("x", "y");
    Files.writeString(file, "hello");
    Process child = new ProcessBuilder("cat", file.toString()).start();
    String text = new String(child.getInputStream().readAllBytes());
    if (child.waitFor() != 0 || !text.equals("hello")) throw new Error(text);
    int sum = IntStream.range(0, 1000).parallel().sum();
    ExecutorService pool = Executors.newFixedThreadPool(4);
    int half = pool.submit(() -> sum / 2).get();
    pool.shutdown();
    System.out.println("java " + half + " " + (System.getProperty("user.home") != null));
  }
}
"""


FRUGAL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of the virtual machine: it works for a second."""


@pytest.mark.skipif(not shutil.which("javac"), reason="needs a Java compiler")
@pytest.mark.parametrize("scene_of_user", [promises.GUARD], indirect=True)  # it knows /tmp by name
def test_java_compiles_and_runs(scene_of_user: Scene) -> None:
    """javac, and a programme with temporary files, a child and thread pools."""
    scene = scene_of_user
    put(scene, "java/Work.java", JAVA)
    # Not TMPDIR; a private /tmp at that name needs a mount namespace.
    line = f"javac {' '.join(f'-J{word}' for word in FRUGAL)} Work.java && java {' '.join(FRUGAL)} -Xmx64m"
    line += ' -Djava.io.tmpdir="$TMPDIR" Work'
    ended = scene.run(["sh", "-c", line], cwd=scene.area / "java", timeout=240)
    assert ended.stdout.startswith("java 249750 "), ended.stdout + ended.stderr


def cargo_of(scene: Scene) -> bool:
    """Whether this identity finds a cargo that runs without the jail."""
    path = shutil.which("cargo", path=scene.who.path)
    return path is not None and scene.who.run([path, "--version"]).returncode == 0


@ROOT_ONCE
def test_rust_builds_where_there_is_cargo(scene: Scene) -> None:
    """cargo builds and runs a project without dependencies; where an identity has none, paddock says so (127)."""
    put(scene, "rust/Cargo.toml", '[package]\nname = "work"\nversion = "0.1.0"\nedition = "2021"\n')
    put(scene, "rust/src/main.rs", 'fn main() { println!("rust {}", (1..=10).sum::<i32>()); }\n')
    words = ["cargo", "run", "--offline", "--quiet"]
    ended = scene.run(words, cwd=scene.area / "rust", timeout=240)
    if cargo_of(scene):
        assert ended.stdout == "rust 55\n", ended.stdout + ended.stderr
    else:
        assert ended.returncode != 0


@AS_A_USER
def test_perl_and_awk(scene: Scene) -> None:
    """The small languages that builds are glued with."""
    program = """perl -MFile::Temp=tempfile -e '($f) = tempfile(); print $f "x"; print join(",", sort(3, 1)), "\\n"'
    echo 1 2 | awk '{ print $1 + $2 | "cat" }'"""
    ended = scene.run(["sh", "-c", program])
    assert ended.stdout == "1,3\n3\n", ended.stderr
