"""Checks docs/cases.md against the tree: each test that it names exists, each row names one, each case is in the comments of its tests.

usage: cases_page_test.py SOURCE_DIR
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "cases.md").read_text()
CASES = ["GR1", "GR2", "GR3", "GR4", "ME2", "ME3", "ME5", "ME6", "OR1", "OR3", "OR5", "RE2", "RE3", "SQ1", "SQ2", "SQ3"]
KINDS = [2, 8, 9, 10, 11, 12, 13, 15]
REFERENCE = re.compile(r"`([\w/.-]+\.(?:cc|h|py)): ([A-Za-z_]\w*)(?:\.(\w+))?`")


def rows():
    """(number of the line, cells) of each table row but headings."""
    for number, line in enumerate(PAGE.splitlines(), 1):
        if line.startswith("|") and not line.startswith("|---") and not line.startswith(("| Place ", "| Case ")):
            yield number, [cell.strip() for cell in line.strip("|").split("|")]


def comment_before(text, at):
    """The comment lines straight above a position, and the docstring straight behind its line."""
    above = []
    for line in reversed(text[:at].splitlines()):
        if not line.startswith("//"):
            break
        above.append(line)
    below = text[at:].split("\n", 2)
    return "\n".join(above) + "\n" + (below[1] if len(below) > 1 and below[1].strip().startswith('"""') else "")


def find(path, suite, name):
    """(text, position) of a test; None: there is none."""
    file = TESTS / path
    if not file.is_file():
        return None
    text = file.read_text()
    if path.endswith(".py"):
        match = re.search(rf"(?ms)^class {suite}\(.*?^    def {name}\(", text) if name else re.search(rf"(?m)^class {suite}\(", text)
        # Of this class, not of a later one.
        if match and name and re.search(r"(?m)^class ", match.group(0)[1:]):
            return None
        return (text, match.end()) if match else None
    match = re.search(rf"(?m)^TEST(?:_[FP])?\(\s*{suite},\s*{name}\)", text)
    return (text, match.start()) if match else None


class CasesPage(unittest.TestCase):
    def test_every_test_that_is_named_exists(self):
        named = REFERENCE.findall(PAGE)
        self.assertGreater(len(named), 200)
        self.assertEqual([f"{path}: {suite}.{name}" for path, suite, name in named if find(path, suite, name) is None], [])

    def test_every_row_names_a_test(self):
        self.assertEqual([number for number, cells in rows() if not REFERENCE.search(cells[-1])], [])

    def test_cells_hold_whole_references(self):
        """What stands in the last column is read as a list of references, nothing else."""
        bad = [number for number, cells in rows() if REFERENCE.sub("", cells[-1]).replace(", ", "").strip()]
        self.assertEqual(bad, [])

    def test_every_kind_and_case_has_its_place(self):
        kinds = [int(n) for n in re.findall(r"(?m)^## Kind (\d+):", PAGE)]
        self.assertEqual(kinds, KINDS)
        self.assertEqual([cells[0] for _, cells in rows()][:len(CASES)], CASES)

    def test_tests_of_a_case_carry_its_id(self):
        bad = []
        for _, cells in list(rows())[:len(CASES)]:
            for path, suite, name in REFERENCE.findall(cells[-1]):
                found = find(path, suite, name)
                # A table of cases carries the ids at its entries.
                if found and cells[0] not in comment_before(*found) and not re.search(rf"// {cells[0]}\b", found[0]):
                    bad.append(f"{cells[0]}: {path}: {suite}.{name}")
        self.assertEqual(bad, [])


class Deadlines(unittest.TestCase):
    """Kind 12: a call without a deadline waits for a peer that has gone for ever."""

    def test_every_grpc_context_gets_a_deadline(self):
        bad = []
        for path in [*(ROOT / "client").rglob("*.cc"), *(ROOT / "worker").rglob("*.cc"), *(ROOT / "server").rglob("*.cc")]:
            text = path.read_text()
            made = len(re.findall(r"\bClientContext\s+\w+;", text))
            if made > len(re.findall(r"\bset_deadline\(", text)):
                bad.append(str(path.relative_to(ROOT)))
        self.assertEqual(bad, [])

    def test_every_call_of_the_python_client_has_a_deadline(self):
        text = (ROOT / "client/python/switchyard/client.py").read_text()
        self.assertIn("method(request, timeout=self.timeout)", text)
        # Stubs are only ever handed to `call` and `pages`, which hands them to `call`.
        self.assertEqual(re.findall(r"_stub\.\w+\(", text), [])


    def test_scripts_wait_for_a_bounded_time(self):
        """Loops of the scripts count, or read lines; none goes round until something happens."""
        bad = []
        for path in [*(ROOT / "deploy").glob("*.sh"), *(ROOT / "tests").rglob("*.sh")]:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.match(r"\s*(until\b|while\b(?! (read|\[ \$# )| IFS= read))", line):
                    bad.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
        self.assertEqual(bad, [])


class Artefacts(unittest.TestCase):
    """Kind 10: a file that is written straight under the name by which it is read can be torn."""

    # Made under a name that nobody reads yet, or written once before anything refers to it.
    ALLOWED = {
        "client/export/staged_folder.cc", "client/trainer_process.cc", "common/base/file.cc", "common/events/exit_record.cc", "common/events/lease_page.cc",
        "server/app/ballast.cc", "server/store/sentinel.cc", "worker/agent/attempt_dir.cc", "worker/agent/fork_server.cc",
        "worker/agent/record_log.cc", "worker/data/safetensors.cc", "worker/train/checkpoint.cc", "worker/trainer/event_writer.cc",
    }

    def test_files_are_written_by_the_shared_function(self):
        bad = []
        for folder in ("client", "common", "server", "worker"):
            for path in (ROOT / folder).rglob("*.cc"):
                name = str(path.relative_to(ROOT))
                if name not in self.ALLOWED and re.search(r"\bofstream\b|\bfopen\(|\bO_CREAT\b", path.read_text()):
                    bad.append(name)
        self.assertEqual(bad, [])


if __name__ == "__main__":
    unittest.main(verbosity=1)
