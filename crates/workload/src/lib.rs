//! Load generators and attack actions that state what a watcher must see.
