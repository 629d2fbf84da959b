//! Where alerts go: text and JSON channels, throttling, bounded queues, the stats file.
