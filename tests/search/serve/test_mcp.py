"""Tools for agents: their results and refusals over the protocol."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import av
import page_library
import processes
import pytest
from PIL import Image

from hlformer_jax.files import OutputError

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
from hlformer_jax.search.serve import mcp as agents  # noqa: E402


def call(server, *calls):
    """Call tools by name and arguments; return the names of all tools, and the results."""

    async def conversation():
        async with mcp.Client(server) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            return names, [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(conversation)


def error(result):
    assert result.is_error
    [content] = result.content
    assert "\n" not in content.text
    return content.text


def test_agent_finds_a_moment_and_sees_its_frame(library):
    garden = library.id("garden")
    arguments = {"text": "a blue scene", "k": 1, "since": "2026-06", "without": ["red"]}
    names, (search_result, show_result) = call(
        agents.build_server(library), ("search", arguments), ("show", {"id": garden, "time": 8.5})
    )
    assert names == ["search", "show"]
    [hit] = search_result.structured_content["results"]
    assert hit["video"] == "trips/lake/boat ride.mp4"
    assert [(m["start"], m["end"]) for m in hit["moments"]] == [(8, 11), (2, 4)]
    assert json.loads(search_result.content[0].text) == search_result.structured_content
    assert library.queries[-1].since == "2026-06" and library.queries[-1].without == ("red",)
    [picture] = show_result.content
    image = Image.open(io.BytesIO(base64.b64decode(picture.data)))
    red, green, _ = image.getpixel((2, 2))
    assert picture.mime_type == "image/jpeg" and image.size == (320, 180)
    assert red > 150 and green < 90


def test_clip_has_a_generated_name_and_replaces_no_file(library, tmp_path):
    clips = tmp_path / "clips"
    cut = "cut", {"id": library.id("boat"), "start": 2, "end": 4, "margin": 1}
    names, (first_result, second_result) = call(agents.build_server(library, clips), cut, cut)
    assert names == ["search", "show", "cut"]
    [clip] = clips.iterdir()
    assert first_result.content[0].text == clip.name == "trips%2Flake%2Fboat ride.mp4_1-5.mp4"
    with av.open(str(clip)) as container:
        assert container.duration / av.time_base == pytest.approx(4, abs=0.1)
    assert clip.name in error(second_result) and str(tmp_path) not in error(second_result)
    assert "--" not in error(second_result)
    (tmp_path / "link").symlink_to(clips)
    with pytest.raises(OutputError):
        agents.build_server(library, tmp_path / "link")


@pytest.mark.parametrize(
    ("tool", "arguments", "name"),
    [
        ("search", {"text": "red", "image": "/etc/passwd"}, "image"),
        ("search", {"text": "red", "K": 3}, "K"),
        ("search", {"text": "red", "k": "many"}, "k"),
        ("search", {"text": "red", "k": 101}, "k is 101: give at most 100"),
        ("search", {}, "text"),
        ("search", {"text": "red", "signals": []}, "signals is empty"),
        ("show", {"id": "0", "time": 1, "path": "/etc/passwd"}, "path"),
    ],
)
def test_wrong_arguments_of_a_tool_are_named(library, tool, arguments, name):
    query_count = len(library.queries)
    _, [result] = call(agents.build_server(library), (tool, arguments))
    assert name in error(result) and "/etc/passwd" not in error(result)
    assert len(library.queries) == query_count


@pytest.mark.parametrize(
    "line",
    [
        "a.mp4 is there already: give another name, or --overwrite",
        "the disk is not there (index NEW --move-root, where it has another path now)",
        "--store=postgresql://h/d: PostgreSQL says: no route to host",
        "ix holds no video that could be indexed: see hlformer-search status --index=ix",
    ],
)
def test_errors_for_agents_have_no_command_line_options(line):
    message = agents._for_agents(line)
    assert "--" not in message and agents.OPERATOR_ADVICE in message


def test_error_of_a_clip_does_not_name_its_folder(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = agents.build_server(library, Path("secrets"))
    Path("secrets").write_text("a file")
    _, [result] = call(server, ("cut", {"id": library.id("boat"), "start": 2, "end": 4}))
    assert "ride.mp4_2-4.mp4' cannot be written" in error(result)
    assert "secrets" not in error(result)


def test_cancelled_cut_ends(library, tmp_path, monkeypatch):
    pulses = []

    def cut(path, start, end, out, margin, pulse):
        page_library.work(pulse, pulses.append)

    async def cancelled():
        with anyio.move_on_after(0.3):
            await server.call_tool("cut", {"id": library.id("boat"), "start": 2, "end": 4})

    monkeypatch.setattr(agents.video, "cut", cut)
    server = agents.build_server(library, tmp_path)
    anyio.run(cancelled)
    assert pulses[0] > 10


def test_time_out_of_range_is_named_with_its_limits(library, tmp_path):
    times = [("time", 1e9, 1e7), ("start", -1, 1e7), ("end", 1e9, 1e7), ("margin", 1e9, 60)]
    calls = []
    for name, value, _ in times:
        arguments = {"time": 1} if name == "time" else {"start": 1, "end": 2}
        calls.append(("show" if name == "time" else "cut", {"id": "0", **arguments, name: value}))
    _, results = call(agents.build_server(library, tmp_path / "clips"), *calls)
    for result, (name, value, limit) in zip(results, times, strict=True):
        assert error(result).endswith(f"{name}: {value:g} s: give 0 to {limit:.0f} s")


def test_agent_errors_are_lines_and_open_no_other_file(rendered, tmp_path):
    folder = tmp_path / "films"
    folder.mkdir()
    for video in page_library.VIDEOS:
        (folder / video).parent.mkdir(parents=True, exist_ok=True)
        (folder / video).write_bytes((rendered / video).read_bytes())
    library = page_library.Library(folder)
    garden, boat = folder / "garden.mp4", folder / "trips/lake/boat ride.mp4"
    (tmp_path / "outside.mp4").write_bytes(garden.read_bytes())
    times = os.stat(garden).st_mtime_ns
    garden.unlink()
    garden.symlink_to(tmp_path / "outside.mp4")
    os.utime(tmp_path / "outside.mp4", ns=(times, times))
    boat.write_bytes(b"another file")
    ids = [library.id("garden"), library.id("boat"), "0" * 16, "../garden.mp4", str(garden)]
    calls = [("show", {"id": video_id, "time": 1}) for video_id in ids]
    calls += [("cut", {"id": video_id, "start": 1, "end": 2}) for video_id in ids]
    herd = library.id("Herd")
    calls += [("show", {"id": herd, "time": -1}), ("cut", {"id": herd, "start": 3, "end": 3})]
    calls += [("search", {"text": "refuse"}), ("search", {"text": "crash"})]
    calls += [("show", {"id": herd, "time": 99}), ("cut", {"id": herd, "start": 3, "end": 99})]
    clips = tmp_path / "clips"
    _, results = call(agents.build_server(library, clips), *calls)
    lines = [error(result) for result in results]
    assert not any(str(tmp_path) in line or "secret" in line for line in lines)
    assert "link out of the indexed folder" in lines[0] and "has changed" in lines[1]
    assert lines[11].endswith("end: 3 s is not after start, 3 s")
    assert "time: 99 s is after the end of the video, " in lines[-2]
    assert "end: 99 s is after the end of the video, " in lines[-1]
    assert not clips.exists() or not list(clips.iterdir())


def test_malformed_message_gets_an_error():
    lines = [
        b"not JSON\n", b"\n", b"[1]\n", b'{"a": "\\ud800\\u00e9"}\n', b'{"b": "\\ud83d\\ude00"}\n',
        b'{"c": "\xff"}\n',
    ]  # fmt: skip
    refusals = []
    reader = io.BufferedReader(agents._Messages(io.BytesIO(b"".join(lines)), refusals.append))
    messages = [json.loads(line) for line in reader.read().splitlines()]
    assert messages[:2] == [{"a": "\ufffd\u00e9"}, {"b": "\U0001f600"}] and len(messages) == 3
    assert [json.loads(line)["error"]["code"] for line in refusals] == [-32700, -32700]


PROGRAM = (
    "import page_library, sys\nfrom hlformer_jax.search.serve import mcp\n"
    "from pathlib import Path\n"
    "mcp.run(mcp.build_server(page_library.Library(Path(sys.argv[1]))))"
)


@pytest.mark.slow  # it starts a process
def test_ctrl_c_ends_the_server_while_it_reads(rendered):
    restored = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", restored + PROGRAM, str(rendered)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=processes.environment(),
    )  # fmt: skip
    with process:
        process.stdin.write(b"not JSON\n")
        process.stdin.flush()
        assert b"Parse error" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(10) == -signal.SIGINT and process.stderr.read() == b""
        finally:
            process.kill()


@pytest.mark.slow  # it starts a process
def test_server_uses_stdin_and_stdout(rendered):
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=["-c", PROGRAM, str(rendered)], env=processes.environment()
    )
    names, [result] = call(parameters, ("search", {"text": "red", "k": 2}))
    assert names == ["search", "show"] and len(result.structured_content["results"]) == 2
