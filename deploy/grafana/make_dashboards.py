#!/usr/bin/env python3
"""Makes dashboards/*.json from panels.txt. `--check` only compares, exit code 1 when a file differs.

The dashboards are laid out by rule (four panels a row), so that a changed query is a changed line in panels.txt.
"""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
SLUGS = {"Coordinator": "coordinator", "Workers and GPUs": "workers", "Queue and outcomes": "queue", "Live run": "run",
         "Routing health": "routing", "Live sweep": "sweep"}
DATASOURCE = {"type": "prometheus", "uid": "switchyard-prom"}
VARIABLES = {
    "job": "label_values(up, job)",
    "pool": "label_values(switchyard_workers, pool)",
    "project": "label_values(switchyard_runs, project)",
    "sweep": "label_values(switchyard_run_info, sweep)",
    "run": "label_values(switchyard_run_info, run)",
    "layer": "label_values(switchyard_routing_usage_entropy_norm, layer)",
}


def unit(title, query):
    """Grafana's unit id, from what the query measures."""
    if "/min" in title:
        return "cpm"
    if title.startswith("Disk days") or "days left" in title:
        return "d"
    if re.search(r"ratio|share|Slot use|utilisation|availability|Error budget|memory used|/ uniform", title + query.split("{")[0], re.I):
        return "percentunit" if "entropy" not in query else "none"
    if re.search(r"_bytes", query) and "/" not in query:
        return "bytes"
    if "temperature" in query:
        return "celsius"
    if "power" in query:
        return "watt"
    if re.search(r"seconds_bucket|_seconds\{|_seconds$|lag_seconds|timestamp_seconds|clock_offset", query) and not title.startswith(("Imbalance", "Stalled")):
        return "s"
    if title.endswith("/s") or "/s by" in title or "/s " in title:
        return "short"
    return "short"


def parse():
    boards, board = {}, None
    for number, line in enumerate((HERE / "panels.txt").read_text().splitlines(), 1):
        if line.startswith("== "):
            board = boards.setdefault(line[3:].split(" (")[0], [])
        elif line and not line.startswith("#"):
            title, separator, query = line.partition(" :: ")
            if not separator or board is None:
                sys.exit(f"panels.txt:{number}: '{line}' is not TITLE :: QUERY under a '== BOARD' line")
            board.append((title, query))
    return boards


def variables(panels):
    text = " ".join(query for _, query in panels)
    result = []
    for name, query in VARIABLES.items():
        if re.search(r"\$" + name + r"\b", text):
            result.append({"name": name, "type": "query", "label": name, "datasource": DATASOURCE, "query": {"query": query, "refId": name},
                           "refresh": 2, "sort": 1, "includeAll": name in ("pool", "project"), "multi": name in ("pool", "project"),
                           "allValue": ".*" if name in ("pool", "project") else None})
    if "$target_step" in text:
        result.append({"name": "target_step", "type": "textbox", "label": "target step", "query": "10000",
                       "current": {"text": "10000", "value": "10000"}})
    return result


def panel(index, title, query):
    stat = title in ("Degraded mode", "Attempt", "Backup age", "Up and version") or "days left" in title
    heat = "heat map" in title
    tags = re.findall(r"\[([^\]]+)\]", title)
    kind = "heatmap" if heat else "stat" if stat else "timeseries"
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}} if stat else {"legend": {"displayMode": "list", "placement": "bottom"}}
    return {"id": index + 1, "type": kind, "title": title, "datasource": DATASOURCE,
            "description": ("Needs: " + ", ".join(tags)) if tags else "",
            "gridPos": {"x": 6 * (index % 4), "y": 8 * (index // 4), "w": 6, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit(title, query)}, "overrides": []}, "options": {} if heat else options,
            "targets": [{"refId": "A", "datasource": DATASOURCE, "expr": query}]}


def dashboard(title, panels):
    links = [{"type": "link", "title": name, "url": f"/d/switchyard-{slug}", "keepTime": True, "includeVars": True}
             for name, slug in SLUGS.items() if name != title]
    return {"uid": "switchyard-" + SLUGS[title], "title": "Switchyard: " + title, "schemaVersion": 38, "version": 1, "editable": False,
            "tags": ["switchyard"], "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "links": links,
            "templating": {"list": variables(panels)}, "panels": [panel(i, t, q) for i, (t, q) in enumerate(panels)]}


def main():
    differ = []
    for title, panels in parse().items():
        path = HERE / "dashboards" / f"{SLUGS[title]}.json"
        text = json.dumps(dashboard(title, panels), indent=1, ensure_ascii=False) + "\n"
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                differ.append(path.name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if differ:
        sys.exit(f"not as panels.txt makes them: {', '.join(differ)}; run deploy/grafana/make_dashboards.py")


if __name__ == "__main__":
    main()
