"""Checks the tree itself: top level, layers of includes, pure folders, where generated and heavy headers may appear.

usage: tree_test.py SOURCE_DIR
"""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()

TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "CHANGELOG.md", "README.md", "proto", "server", "worker", "client",
             "migrations", "deploy", "tests", "common", "cmake", "docs"}

# Folder -> layer; the longest matching prefix counts. Same numbers as cmake/SwitchyardTargets.cmake.
LAYERS = {
    "common/base": 0, "switchyard/v1": 1, "switchyard/export": 1, "common": 2, "server/scheduler": 2, "server/search": 2,
    "worker/agent/agent_state": 2, "server/store": 3, "server/results": 3, "server/metrics": 3, "server/api": 3,
    "worker/model": 3, "worker/data": 3, "server/app": 4, "worker/agent": 4, "worker/dist": 4, "worker/train": 4,
    "worker/eval": 4, "worker/analysis": 4, "worker/trainer": 4, "client": 5, "tests": 6,
}
PURE = ("server/scheduler/", "server/search/", "worker/agent/agent_state")
PURE_FORBIDDEN = re.compile(
    r"<(chrono|thread|mutex|shared_mutex|condition_variable|future|fstream|filesystem|iostream|random|ctime|time\.h|"
    r"unistd\.h|fcntl\.h|sys/|sqlite3|grpc|google/protobuf|torch|ATen|c10|prometheus)|\"(switchyard/v1/|common/base/(file|log|sha256))")
HEADER_FORBIDDEN = re.compile(r"<(grpcpp/|sqlite3\.h|nlohmann/|CLI/|torch/|ATen/(?!core/Tensor\.h)|c10/(?!util/))|\.pb\.h\"")


def tracked(*suffixes):
    out = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True).stdout
    return [p for p in out.splitlines() if p.endswith(suffixes) and (ROOT / p).exists()]


def layer(path):
    best = max((k for k in LAYERS if path.startswith(k)), key=len, default=None)
    return None if best is None else LAYERS[best]


def includes(path):
    for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
        match = re.match(r"\s*#\s*include\s+([<\"][^>\"]+[>\"])", line)
        if match:
            yield number, match.group(1)


class Tree(unittest.TestCase):
    def test_top_level_is_the_agreed_one(self):
        names = {p.split("/")[0] for p in tracked("")}
        self.assertEqual({n for n in names if not n.startswith(".")} - TOP_LEVEL, set())

    def test_pages_that_are_named_exist(self):
        bad = []
        for path in tracked(""):
            if (ROOT / path).is_symlink() or path.endswith((".png", ".json", ".safetensors")):
                continue
            text = (ROOT / path).read_text(errors="replace")
            named = {name for name in re.findall(r"(?<![\w/.-])docs/[\w-]+\.md", text)}
            bad += [f"{path} names {name}" for name in named if not (ROOT / name).is_file()]
            if path.endswith(".md"):
                for target in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text):
                    if not ((ROOT / path).parent / target).exists():
                        bad.append(f"{path} links to {target}")
        self.assertEqual(bad, [])

    def test_includes_never_point_upwards(self):
        bad = []
        for path in tracked(".h", ".cc", ".cu"):
            own = layer(path)
            for number, name in includes(path):
                other = layer(name.strip('"')) if name.startswith('"') else None
                if own is not None and other is not None and other > own:
                    bad.append(f"{path}:{number} (layer {own}) includes {name} (layer {other})")
        self.assertEqual(bad, [])

    def test_pure_folders_see_no_clock_thread_file_protobuf_sqlite_grpc_or_torch(self):
        bad = []
        for path in tracked(".h", ".cc"):
            if path.startswith(PURE):
                bad += [f"{path}:{n} includes {name}" for n, name in includes(path) if PURE_FORBIDDEN.match(name)]
        self.assertEqual(bad, [])

    def test_heavy_headers_stay_out_of_headers(self):
        bad = []
        for path in tracked(".h"):
            if path.startswith("tests/"):
                continue
            bad += [f"{path}:{n} includes {name}" for n, name in includes(path) if HEADER_FORBIDDEN.search(name)]
        self.assertEqual(bad, [])

    def test_server_client_and_common_know_nothing_of_torch(self):
        bad = []
        for path in tracked(".h", ".cc"):
            if path.startswith(("server/", "client/", "common/", "worker/agent/")):
                bad += [f"{path}:{n} includes {name}" for n, name in includes(path) if re.match(r"<(torch|ATen|c10)/", name)]
        self.assertEqual(bad, [])

    def test_nothing_is_left_open_and_no_machine_paths(self):
        bad = []
        for path in tracked(".h", ".cc", ".cu", ".proto", ".sql", ".cmake", ".sh", ".py", ".txt", ".md", ".json", ".yml", ".yaml"):
            if path == "tests/unit/tree/tree_test.py":
                continue
            for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
                if re.search(r"\b(TODO|FIXME|XXX|HACK)\b|/(?:root|home/\w+|work)/", line):
                    bad.append(f"{path}:{number}: {line.strip()[:80]}")
        self.assertEqual(bad, [])

    def test_headers_have_pragma_once(self):
        self.assertEqual([p for p in tracked(".h") if "#pragma once" not in (ROOT / p).read_text()], [])


if __name__ == "__main__":
    unittest.main(verbosity=1)
