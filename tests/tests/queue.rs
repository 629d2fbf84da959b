//! `tollgate serve` with a queue of NATS in front of its store: what is acknowledged arrives once, whatever is killed.

mod queue {
    pub(crate) mod agent;
    pub(crate) mod nats;
    pub(crate) mod place;
    pub(crate) mod silence;
    mod trouble;
}

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use e2e::collector::{alert, output};
use e2e::{Scratch, need_slow, program, until};
use serde_json::json;
use testing::postgres::Server;

use self::queue::agent::{Fleet, Random, metric};
use self::queue::nats::{Cluster, Nats};
use self::queue::place::{Place, Shut, ask, is_ready};

#[test]
fn a_batch_is_acknowledged_by_the_queue_and_stored_once() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    let collector = place.serve();
    let fleet = place.fleet(&collector, &["a"]);
    let address = collector.address();
    let agent = &fleet.agents[0];
    let post = |numbers| agent.post(address, numbers).expect("it answers");
    let (status, answer) = post(1..=3);
    assert_eq!(
        (status, answer),
        (
            200,
            json!({"acknowledged": 3, "stored": 3, "duplicates": 0, "missing": 0})
        )
    );
    // Its answer got lost, and more came in the meantime.
    let expected = json!({"acknowledged": 5, "stored": 2, "duplicates": 3, "missing": 0});
    assert_eq!(post(1..=5).1, expected);
    let expected = json!({"acknowledged": 5, "stored": 0, "duplicates": 2, "missing": 0});
    assert_eq!(post(2..=3).1, expected);
    // What was passed over never comes.
    let expected = json!({"acknowledged": 9, "stored": 1, "duplicates": 0, "missing": 3});
    assert_eq!(post(9..=9).1, expected);
    until("everything is stored", || fleet.stored(address).len() == 6);
    let numbers: Vec<u64> = fleet.stored(address).into_iter().map(|(_, n)| n).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 9]);
    let agents = ask(&collector, "/api/v1/agents", &fleet.reader)
        .expect("it answers")
        .1;
    assert_eq!(agents["agents"][0]["acknowledged"], 9, "{agents}");
    assert_eq!(agents["agents"][0]["missing"], 3, "{agents}");
    let measured = |name| metric(address, &fleet.reader, name);
    until("the queue is empty", || {
        measured("tollgate_queue_batches") == Some(0)
    });
    assert_eq!(
        measured("tollgate_queue_batches_total{result=\"queued\"}"),
        Some(3)
    );
    assert_eq!(measured("tollgate_queue_up"), Some(1));
    assert_eq!(measured("tollgate_queue_set_aside"), Some(0));
}

#[test]
fn nats_that_is_away_refuses_batches_until_it_comes() {
    let scratch = Scratch::new();
    let mut nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    nats.kill();
    // The server starts without it.
    let collector = place.serve();
    let (status, _) = ask(&collector, "/readyz", "").expect("it answers");
    assert_eq!(status, 503);
    nats.restart();
    let fleet = place.fleet(&collector, &["a"]);
    let agent = &fleet.agents[0];
    assert_eq!(
        agent.post(collector.address(), 1..=1).expect("an answer").0,
        200
    );
    nats.kill();
    until("batches are refused", || {
        let (status, answer) = agent.post(collector.address(), 2..=2).expect("an answer");
        let is_away = answer["error"] == "the queue is away; send it again";
        status == 503 && is_away
    });
    let measured = |name| metric(collector.address(), &fleet.reader, name);
    assert_eq!(measured("tollgate_queue_up"), Some(0));
    assert_eq!(measured("tollgate_queue_batches"), None, "it is not known");
    assert!(measured("tollgate_queue_refused_total{cause=\"away\"}") > Some(0));
}

/// Kills servers at random while agents send, and counts.
fn kill_servers(place: &Place, rounds: u32) {
    let mut collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b"]);
    let mut random = Random::default();
    for _ in 0..rounds {
        let until = Instant::now() + Duration::from_millis(50 + random.below(250));
        fleet.send(collector.address(), until, &mut random);
        // Amid what it does: a batch is under way.
        let killed = fleet.kill_while_sending(&mut collector, &mut random);
        killed.expect("it ran");
        collector = place.serve();
    }
    fleet.send_once(collector.address(), &mut random);
    fleet.check(collector.address());
}

#[test]
fn a_server_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    let (scratch, nats) = (Scratch::new(), Nats::start());
    kill_servers(&Place::file(scratch.path(), &nats.url(), &[]), 10);
}

#[test]
fn a_server_with_postgresql_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    need_slow!();
    let (server, nats) = (Server::shared(), Nats::start());
    kill_servers(&Place::new(server.database(), &nats.url(), &[]), 100);
}

/// Kills NATS at random while agents send, and counts.
fn kill_nats(rounds: u32) {
    let scratch = Scratch::new();
    let mut nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b"]);
    let mut random = Random::default();
    for _ in 0..rounds {
        let until = Instant::now() + Duration::from_millis(200 + random.below(200));
        fleet.send(collector.address(), until, &mut random);
        nats.kill();
        nats.restart();
        fleet.send_once(collector.address(), &mut random);
    }
    fleet.check(collector.address());
}

#[test]
fn nats_that_is_killed_during_ingest_loses_and_doubles_nothing() {
    kill_nats(5);
}

#[test]
fn nats_that_is_killed_a_hundred_times_loses_and_doubles_nothing() {
    need_slow!();
    kill_nats(100);
}

#[test]
fn two_servers_write_from_one_queue_in_the_order_of_each_agent() {
    let (server, nats) = (Server::shared(), Nats::start());
    let place = Place::new(server.database(), &nats.url(), &[]);
    let servers = [place.serve(), place.serve()];
    let mut fleet = place.fleet(&servers[0], &["a", "b", "c"]);
    until("the other one is ready", || is_ready(&servers[1]));
    let mut random = Random::default();
    for round in 0..30 {
        fleet.send_once(servers[round % 2].address(), &mut random);
    }
    fleet.check(servers[0].address());
}

#[test]
fn a_cluster_with_three_replicas_goes_on_without_one_of_its_servers() {
    let scratch = Scratch::new();
    let mut cluster = Cluster::start();
    let place = Place::file(scratch.path(), &cluster.urls(), &["--queue-replicas", "3"]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b"]);
    let mut random = Random::default();
    for _ in 0..20 {
        fleet.send_once(collector.address(), &mut random);
    }
    // The one that the server is connected to.
    cluster.servers[0].kill();
    for _ in 0..20 {
        fleet.send_once(collector.address(), &mut random);
    }
    fleet.check(collector.address());
}

#[test]
fn without_the_store_agents_are_acknowledged_until_the_stream_is_full() {
    let (server, nats) = (Server::shared(), Nats::start());
    let url = server.database();
    let place = Place::new(url.clone(), &nats.url(), &["--queue-batches", "30"]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b"]);
    let address = collector.address();
    let mut random = Random::default();
    fleet.send_once(address, &mut random);
    // Metrics are for those whom the store has confirmed.
    let measured = |fleet: &Fleet, name| metric(address, &fleet.reader, name);
    assert_eq!(measured(&fleet, "tollgate_store_up"), Some(1));
    let shut = Shut::now(&server, &url);
    for _ in 0..10 {
        fleet.send_once(address, &mut random);
        // Longer than the store's word is asked for anew.
        sleep(Duration::from_millis(600));
    }
    let life = fleet.agents[0].show_life(address).expect("it answers");
    assert_eq!(life.1["stored"], false, "{life:?}");
    assert_eq!(life.0, 200, "or agents would not send");
    assert_eq!(measured(&fleet, "tollgate_store_up"), Some(0));
    assert!(measured(&fleet, "tollgate_queue_batches") >= Some(20));
    assert!(measured(&fleet, "tollgate_queue_lag_seconds") >= Some(4));
    let (_, ready) = ask(&collector, "/readyz", "").expect("it answers");
    assert_eq!(ready["store"], "away", "{ready}");
    let full = (0..30).find_map(|_| fleet.try_once(address, &mut random));
    let (status, answer) = full.expect("it is full before");
    assert_eq!(
        (status, &answer["error"]),
        (503, &json!("the queue is full; send it again"))
    );
    assert!(measured(&fleet, "tollgate_queue_refused_total{cause=\"full\"}") >= Some(1));
    shut.open();
    // What was refused is sent again.
    fleet.send_once(address, &mut random);
    fleet.check(address);
}

#[test]
fn a_revoked_token_is_refused_within_five_seconds() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    let collector = place.serve();
    let fleet = place.fleet(&collector, &["a"]);
    let agent = &fleet.agents[0];
    let post = |n| agent.post(collector.address(), n..=n).expect("an answer").0;
    assert_eq!(post(1), 200);
    let mut revoke = Command::new(program());
    revoke.args(["serve", "token", "revoke", "1", "--store", &place.store]);
    output(&mut revoke);
    let revoked = Instant::now();
    until("it is refused", || post(2) == 401);
    assert!(
        revoked.elapsed() < Duration::from_secs(6),
        "{:?}",
        revoked.elapsed()
    );
    assert_eq!(post(2), 401);
}

#[test]
fn what_can_never_be_stored_is_set_aside_and_shown() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a"]);
    let mut random = Random::default();
    fleet.send_once(collector.address(), &mut random);
    // Not a batch, and a batch of an agent that the store does not have.
    nats.publish("tollgate.batch.1", "", &alert("r", 1));
    let headers = "Tollgate-Format: 1\r\nTollgate-Sequence: 1\r\nTollgate-Records: 0\r\nTollgate-Received: 1\r\n";
    nats.publish("tollgate.batch.99", headers, "");
    fleet.send_once(collector.address(), &mut random);
    fleet.check(collector.address());
    let measured = |name| metric(collector.address(), &fleet.reader, name);
    until("both are set aside", || {
        measured("tollgate_queue_set_aside") == Some(2)
    });
    assert_eq!(
        measured("tollgate_queue_batches_total{result=\"set_aside\"}"),
        Some(2)
    );
    until("the queue is empty", || {
        measured("tollgate_queue_batches") == Some(0)
    });
}

#[test]
fn a_stream_that_is_none_of_ours_is_left_alone() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    nats.make_stream(
        "tollgate",
        &json!({"name": "tollgate", "subjects": ["other.>"], "storage": "file"}),
    );
    let mut collector = Place::file(scratch.path(), &nats.url(), &[]).serve();
    let mut said = String::new();
    while !said.contains("is no queue of tollgate; name another with --queue-stream") {
        let read = std::io::BufRead::read_line(&mut collector.stderr, &mut said);
        assert!(read.is_ok_and(|read| read > 0), "{said}");
    }
    assert!(!is_ready(&collector));
}
