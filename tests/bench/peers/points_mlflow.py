"""Acknowledged metric points per second of an MLflow tracking server on SQLite, in batches of 1,000 over HTTP.

usage: points_mlflow.py [clients] [batches per client]
"""
import concurrent.futures
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
from mlflow.entities import Metric  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402

CLIENTS, BATCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 4, int(sys.argv[2]) if len(sys.argv) > 2 else 5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write(uri):
    client = MlflowClient(uri)
    run = client.create_run("0").info.run_id
    for batch in range(BATCHES):
        now = int(time.time() * 1000)
        client.log_batch(run, metrics=[Metric(f"series_{i % 10}", 2.0 + 1 / (1 + i), now, batch * 100 + i // 10) for i in range(1000)])


with tempfile.TemporaryDirectory() as folder:
    uri = f"http://127.0.0.1:{free_port()}"
    server = subprocess.Popen([sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.rsplit(":", 1)[1], "--workers", "2",
                               "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", folder],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(uri + "/health", timeout=1)
                break
            except OSError:
                time.sleep(0.5)
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(write, [uri] * CLIENTS))
        took = time.perf_counter() - start
        print(f"mlflow clients={CLIENTS} points_per_call=1000 points_per_s={CLIENTS * BATCHES * 1000 / took:.0f}")
    finally:
        server.terminate()
        server.wait(20)
