//! A collector that is far away.

use std::net::Shutdown;

use super::*;

/// Time that each answer is on its way.
const WAY: Duration = Duration::from_millis(120);

/// A port from which connections are passed on to this address, and answers come back late.
pub(super) fn far(address: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let here = listener.local_addr().expect("a port");
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(address).expect("the collector listens");
            let (near_reader, far_reader) = (near.try_clone(), far.try_clone());
            let (near_reader, far_reader) =
                (near_reader.expect("a file"), far_reader.expect("a file"));
            thread::spawn(move || pass(near_reader, far, Duration::ZERO));
            thread::spawn(move || pass(far_reader, near, WAY));
        }
    });
    here
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        thread::sleep(delay);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other side may have closed it.
    let _ = to.shutdown(Shutdown::Write);
}

/// One answer an alert would take more than a minute, in which the queue of the channel overflows.
#[test]
fn a_collector_far_away_does_not_keep_alerts_from_the_disk() {
    let fake = fake();
    let fixture = fixture(far(fake.address));
    let mut channel = open(&fixture);
    channel.turn = TURN;
    let began = Instant::now();
    for _ in 0..600 {
        channel
            .deliver(&deliveries(1, Format::default()))
            .expect("on disk");
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    while channel.held() > 0 {
        channel.release(false).expect("delivered");
    }
    let mut next = 1;
    for (first, lines) in fake.batches() {
        assert_eq!(first, next, "{:?}", fake.batches());
        next += lines as u64;
    }
    assert_eq!(next, 601);
    // Half of the time is for sending, and each request takes as many as there are.
    assert!(fake.batches().len() < 200, "{:?}", fake.batches());
}

/// The end of a run does not take turns: nothing comes any more.
#[test]
fn the_end_of_a_run_sends_everything_to_a_collector_far_away() {
    let fake = fake();
    let fixture = fixture(far(fake.address));
    let mut channel = open(&fixture);
    channel.turn = TURN;
    for _ in 0..5 {
        channel
            .deliver(&deliveries(700, Format::default()))
            .expect("on disk");
    }
    assert!(channel.held() > 0, "sent while new alerts had to wait");
    channel.release(true).expect("delivered");
    assert_eq!(channel.held(), 0);
    let sent: usize = fake.batches().iter().map(|(_, lines)| lines).sum();
    assert_eq!(sent, 3500);
}
