"""Snapshots of a program's folder: taken on all nodes at one instant, and given back by the next.

The launcher has a ``SnapshotProcess`` (``process.py``), which runs a ``SnapshotWriter``
(``writer.py``) of three threads. One watches the folder (``folder.py``) and takes hold of its
content (``capture.py``), one uploads that (``uploader.py``), one exchanges listings with the other
nodes (``exchange.py``). Of the newest instant that all have listed (``barrier.py``) the main node
makes a complete snapshot, and clears old ones away (``coordinator.py``).
Before the program starts, ``restore.py`` gives the newest one back.
"""
