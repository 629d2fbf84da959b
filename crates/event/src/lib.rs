//! What happened: events, the processes and descriptors they concern, the field registry and the interest plan.
