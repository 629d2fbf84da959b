//! The network, and what is done to data and the machine.

use super::*;

cases! {
ssh_tunnel => Case {
    rule: "Tunnel by SSH",
    fires: &[
        act("ssh", sh!("ln -s /bin/true %W/ssh; %W/ssh -fN -R 8080:127.0.0.1:80 host")).at(&[Host]).by(&[User]),
        act("ssh", sh!("ln -s /bin/true %W/ssh; %W/ssh -ND1080 host")),
        act("ssh", sh!("ln -s /bin/true %W/ssh; %W/ssh -L 8080:db:5432 host")),
    ],
    near_misses: &[
        // Words that end as options do, and options of the command at the other side.
        act("ssh", sh!("ln -s /bin/true %W/ssh; %W/ssh -p 22 -i id_D host show now",
            "%W/ssh host ls -R /tmp; %W/ssh host grep -w x /tmp/y")),
        act("ssh", sh!("ln -s /bin/true %W/ssh; %W/ssh -L 8080:db:5432 host")).at(&[Host]).on_terminal(),
    ],
};

scan_network => Case {
    rule: "Network scanned or listened to",
    fires: &[
        act("nmap", sh!("ln -s /bin/true %W/nmap; %W/nmap -sS 127.0.0.1")).at(&[Host]).by(&[User]),
        act("nc", &["nc", "-zw1", "127.0.0.1", "20-22"]),
    ],
    near_misses: &[
        act("nc", sh!("ln -s /bin/true %W/nc; %W/nc zone-10-0-0-1.example 80; nc -z -w1 127.0.0.1 22")),
        act("nmap", sh!("ln -s /bin/true %W/nmap; cp /bin/bash %W/make; %W/make -c '%W/nmap 127.0.0.1; :'")),
    ],
};

file_server => Case {
    rule: "File server started from a command line",
    fires: &[
        act("python3", sh!("ln -s /bin/true %W/python3; %W/python3 -m http.server 9099")).at(&[Host])
            .by(&[User]),
        act("php", sh!("ln -s /bin/true %W/php; %W/php -S 127.0.0.1:9099")),
    ],
    near_misses: &[
        act("python3", sh!("ln -s /bin/true %W/python3; %W/python3 -m json.tool; %W/python3 server.py")),
        act("python3", sh!("ln -s /bin/true %W/python3; %W/python3 -m http.server 9099")).at(&[Host]).on_terminal(),
    ],
};

upload_file => Case {
    rule: "File uploaded from a command line",
    fires: &[
        act("curl", sh!("ln -s /bin/true %W/curl; %W/curl -T /etc/hosts ftp://127.0.0.1/")).at(&[Host])
            .by(&[User]),
        act("curl", sh!("ln -s /bin/true %W/curl; %W/curl -F f=@/etc/hosts http://127.0.0.1/")),
    ],
    near_misses: &[
        act("curl", sh!("ln -s /bin/true %W/curl; %W/curl -d a=b -o x -u me@x.org:y http://127.0.0.1/",
            "ln -s /bin/true %W/wget; %W/wget --post-data=a=b http://127.0.0.1/")),
    ],
};

archive_with_password => Case {
    rule: "Archive with a password",
    fires: &[
        act("zip", sh!("ln -s /bin/true %W/zip; %W/zip -qP secret x.zip x")).at(&[Host]).by(&[User]),
        act("gpg", sh!("ln -s /bin/true %W/gpg; %W/gpg --batch -c x")),
        act("openssl", sh!("ln -s /bin/true %W/openssl; %W/openssl enc -aes-256-cbc -pass pass:x -in x -out y")),
    ],
    near_misses: &[
        act("zip", sh!("ln -s /bin/true %W/zip; %W/zip -r my-exports.zip x --exclude y",
            "ln -s /bin/true %W/gpg; %W/gpg --verify x.asc; %W/gpg --check-sigs")),
        act("openssl", sh!("ln -s /bin/true %W/openssl; %W/openssl enc -d -aes-256-cbc -pass pass:x -in y",
            "%W/openssl enc -base64 -in x; %W/openssl x509 -in x -noout")),
    ],
};

capture_screen => Case {
    rule: "Screen or clipboard captured",
    fires: &[act("xwd", sh!("ln -s /bin/true %W/xwd; %W/xwd -root")).at(&[Host]).by(&[User])],
    near_misses: &[
        act("xclip", sh!("ln -s /bin/true %W/xclip; echo | %W/xclip -i")),
        act("xwd", sh!("ln -s /bin/true %W/xwd; %W/xwd -root")).at(&[Host]).on_terminal(),
        // A desktop's own key.
        act("scrot", sh!("ln -s /bin/true %W/scrot; find %W/scrot -exec %W/scrot ';'")),
    ],
};

start_miner => Case {
    rule: "Detect crypto miners using the Stratum protocol",
    fires: &[
        act("x", sh!("ln -s /bin/true %W/x; %W/x -o stratum+tcp://pool.example:3333")).at(&[Host]).by(&[User]),
        act("xmrig", sh!("ln -s /bin/true %W/xmrig; %W/xmrig -c x")),
    ],
    near_misses: &[
        act("x", sh!("ln -s /bin/true %W/x; %W/x -o tcp://stratum.example:3333")),
        act("ls", sh!("mkdir %W/xmrig; ls %W/xmrig")),
    ],
};

stop_machine => Case {
    rule: "Machine stopped by hand",
    fires: &[
        act("shutdown", sh!("ln -s /bin/true %W/shutdown; %W/shutdown -h now")).at(&[Host]),
        act("systemctl", sh!("ln -s /bin/true %W/systemctl; %W/systemctl reboot")),
    ],
    near_misses: &[
        act("shutdown", sh!("ln -s /bin/true %W/shutdown; %W/shutdown -c; %W/shutdown --help")),
        act("systemctl", sh!("ln -s /bin/true %W/systemctl; %W/systemctl restart x; %W/systemctl reboot --dry-run")),
        act("reboot", sh!("ln -s /bin/true %W/reboot; cp /bin/bash %W/systemd; %W/systemd -c '%W/reboot; :'")),
    ],
};
}
