"""Snapshots of a program's folder: taken on all nodes at one instant, restored by the next attempt.

The launcher starts a ``SnapshotProcess`` (``process.py``), which runs a ``SnapshotWriter``
(``writer.py``) with three threads. One watches the folder (``folder.py``) and captures its contents
(``capture.py``), one uploads them (``uploader.py``), and one exchanges listings with other nodes
(``exchange.py``). For the newest instant that all nodes have listed (``barrier.py``) the main node
writes a complete snapshot, and deletes old ones (``coordinator.py``). Before the program starts,
``restore.py`` restores the newest one.
"""
