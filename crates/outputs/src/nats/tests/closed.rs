//! Connections that the server closes.

use std::net::Shutdown;

use super::*;

/// Returns whether the peer of the local socket with a port has closed its end: state CLOSE_WAIT, 08 in proc(5).
fn is_closed_by_peer(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    sockets.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let local = words.next().and_then(|local| local.split_once(':'));
        let is_it = local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port));
        is_it && words.nth(1) == Some("08")
    })
}

#[test]
fn a_connection_that_the_server_has_closed_meanwhile_is_replaced_without_a_wait() {
    let (notice, noticed) = channel();
    let once = move |mut client: Client| {
        client.log_in();
        let (_, barrier) = client.batch().unwrap();
        client.acknowledge(&barrier);
        let stream = client.stream.get_ref();
        stream.shutdown(Shutdown::Write).unwrap();
        notice.send(stream.peer_addr().unwrap().port()).unwrap();
        // Until the client goes. A ping gets no answer: nothing can be sent any more. A reset ends it as well.
        let _ = std::io::copy(&mut client.stream, &mut std::io::sink());
    };
    let (part, got) = collecting();
    let url = server(vec![Box::new(once), part]);
    let mut channel = opened(options(&url));
    let alerts = deliveries(2, Format::default());
    channel.deliver(&alerts[..1]).unwrap();
    let port = noticed.recv_timeout(Duration::from_secs(20)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_closed_by_peer(port) {
        assert!(Instant::now() < deadline, "the end has not arrived");
        thread::sleep(Duration::from_millis(1));
    }
    once_in_good_time(&mut channel);
    channel.deliver(&alerts[1..]).unwrap();
    assert_eq!(got.try_iter().count(), 1);
}
