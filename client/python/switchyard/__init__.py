"""Sweeps, runs and curves of a Switchyard coordinator.

    import switchyard
    frame = switchyard.results("router-comparison")
    curve = switchyard.curve("router-comparison/3", "valid/bits_per_byte")

Both are pandas data frames where pandas is installed, else lists of dicts. `connect` gives a client
with more: sweeps, runs, series, the generated stubs. The server is the argument, then
$SWITCHYARD_SERVER, then the sockets that the command line looks for.
"""
from .client import Client, Error, connect

__all__ = ["Client", "Error", "connect", "curve", "results"]


def results(sweep, series=(), server=None):
    """A row per run of `sweep` (name, id or `last`); see Client.results."""
    with connect(server) as client:
        return client.results(sweep, series)


def curve(run, series, attempt=0, server=None):
    """Points of one series of a run; see Client.curve."""
    with connect(server) as client:
        return client.curve(run, series, attempt)
