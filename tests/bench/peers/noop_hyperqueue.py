"""No-op tasks per second of HyperQueue's local cluster, one /bin/true process each, without its journal.

usage: noop_hyperqueue.py [tasks]
"""
import sys
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
with LocalCluster(worker_config=WorkerConfig(cores=2)) as cluster:
    client = cluster.client()
    job = Job()
    for _ in range(tasks):
        job.program(["/bin/true"], stdout=None, stderr=None)
    time.sleep(2)
    start = time.perf_counter()
    client.wait_for_jobs([client.submit(job)])
    print(f"hyperqueue tasks={tasks} tasks_per_s={tasks / (time.perf_counter() - start):.0f}")
