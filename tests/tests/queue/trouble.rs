//! What one agent, a full or deleted stream, a dead leader or a silent store cannot do to the others.

use std::thread::sleep;
use std::time::{Duration, Instant};

use e2e::collector::request;
use e2e::{Scratch, until};
use testing::postgres::Server;

use super::agent::{Fleet, Random, metric};
use super::nats::{Cluster, Nats};
use super::place::{Place, Shut, ask, is_ready, psql};
use super::silence::Way;

#[test]
fn a_batch_that_the_store_refuses_is_set_aside_and_keeps_nobody_waiting() {
    let (server, nats) = (Server::shared(), Nats::start());
    let url = server.database();
    let place = Place::new(url.clone(), &nats.url(), &[]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b"]);
    let address = collector.address();
    psql(
        &url,
        "ALTER TABLE tollgate.alerts ADD CONSTRAINT refused CHECK (agent <> 1 OR sequence <> 2)",
    );
    // More batches behind the one that is refused than may be in work.
    for n in 1..=270 {
        let (status, answer) = fleet.agents[0].post(address, n..=n).expect("it answers");
        assert_eq!(status, 200, "{answer}");
    }
    fleet.agents.remove(0);
    fleet.send_once(address, &mut Random::default());
    let of = |fleet: &Fleet, host: &str| -> Vec<u64> {
        let stored = fleet.stored(address).into_iter();
        stored.filter(|it| it.0 == host).map(|it| it.1).collect()
    };
    until("the other agent is stored", || !of(&fleet, "b").is_empty());
    until("what follows is stored", || of(&fleet, "a").len() == 269);
    let expected: Vec<u64> = (1..=270).filter(|n| *n != 2).collect();
    assert_eq!(of(&fleet, "a"), expected);
    assert_eq!(
        metric(address, &fleet.reader, "tollgate_queue_set_aside"),
        Some(1)
    );
    let agents = ask(&collector, "/api/v1/agents", &fleet.reader).expect("it answers");
    let agents = agents.1["agents"].as_array().expect("a list").clone();
    let missing = agents.iter().filter_map(|agent| agent["missing"].as_u64());
    assert_eq!(missing.sum::<u64>(), 1, "{agents:?}");
}

#[test]
fn a_number_that_databases_do_not_have_is_refused() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    let collector = place.serve();
    let fleet = place.fleet(&collector, &["a"]);
    let (status, answer) = fleet.agents[0]
        .post(collector.address(), u64::MAX..=u64::MAX)
        .expect("it answers");
    assert_eq!(status, 400, "{answer}");
    let said = answer["error"].as_str().expect("a reason");
    assert!(said.contains("has to be a number from 1 to"), "{said}");
}

#[test]
fn a_full_stream_of_batches_set_aside_is_reported_and_others_go_on() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &["--queue-batches", "6"]);
    let mut collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a"]);
    let measured = |fleet: &Fleet, name| metric(collector.address(), &fleet.reader, name);
    for n in 1..=8 {
        nats.publish("tollgate.batch.1", "", "no batch");
        until("it is set aside, or stays", || {
            measured(&fleet, "tollgate_queue_set_aside") == Some(n.min(6))
        });
    }
    let mut random = Random::default();
    for _ in 0..5 {
        fleet.send_once(collector.address(), &mut random);
    }
    fleet.check(collector.address());
    let batches = measured(&fleet, "tollgate_queue_batches");
    assert_eq!(batches, Some(2), "nothing is deleted");
    let mut said = String::new();
    while !said.contains("help: look at the stream tollgate-aside") {
        let read = std::io::BufRead::read_line(&mut collector.stderr, &mut said);
        assert!(read.is_ok_and(|read| read > 0), "{said}");
    }
    assert!(said.contains("cannot set a batch aside"), "{said}");
}

#[test]
fn a_lower_bound_deletes_no_batch_that_is_acknowledged() {
    let (server, nats) = (Server::shared(), Nats::start());
    let url = server.database();
    let mut place = Place::new(url.clone(), &nats.url(), &[]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a"]);
    let mut random = Random::default();
    fleet.send_once(collector.address(), &mut random);
    let shut = Shut::now(&server, &url);
    for _ in 0..20 {
        fleet.send_once(collector.address(), &mut random);
    }
    drop(collector);
    shut.open();
    // It does not write before it has changed the stream.
    let lower = ["--queue-batches", "3", "--queue-size", "1"];
    place.words.extend(lower.map(str::to_owned));
    let mut collector = place.serve();
    until("it is ready", || is_ready(&collector));
    fleet.check(collector.address());
    let mut said = String::new();
    while !said.contains("keeps its bound of 1000000 batches, which is not lowered to 3") {
        let read = std::io::BufRead::read_line(&mut collector.stderr, &mut said);
        assert!(read.is_ok_and(|read| read > 0), "{said}");
    }
}

#[test]
fn a_consumer_or_a_stream_that_is_deleted_is_made_again() {
    let scratch = Scratch::new();
    let nats = Nats::start();
    let place = Place::file(scratch.path(), &nats.url(), &[]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a"]);
    let mut random = Random::default();
    for gone in ["CONSUMER.DELETE.tollgate.store", "STREAM.DELETE.tollgate"] {
        fleet.send_once(collector.address(), &mut random);
        fleet.check(collector.address());
        let answer = nats.ask(&format!("$JS.API.{gone}"));
        assert_eq!(answer["success"], true, "{answer}");
        fleet.send_once(collector.address(), &mut random);
        fleet.check(collector.address());
    }
}

#[test]
fn the_leader_of_the_consumer_dies_while_the_server_of_the_connection_lives() {
    let scratch = Scratch::new();
    let mut cluster = Cluster::start();
    let place = Place::file(scratch.path(), &cluster.urls(), &["--queue-replicas", "3"]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b"]);
    let mut random = Random::default();
    fleet.send_once(collector.address(), &mut random);
    // The collector is connected to the first one.
    let mut leader = String::new();
    until("another one leads", || {
        let info = cluster.servers[0].ask("$JS.API.CONSUMER.INFO.tollgate.store");
        leader = info["cluster"]["leader"].as_str().unwrap_or("").to_owned();
        let is_another = !leader.is_empty() && leader != "s0";
        if !is_another {
            cluster.servers[0].ask("$JS.API.CONSUMER.LEADER.STEPDOWN.tollgate.store");
            sleep(Duration::from_millis(200));
        }
        is_another
    });
    let at = usize::from(leader == "s2") + 1;
    for round in 0..20 {
        fleet.send_once(collector.address(), &mut random);
        if round == 10 {
            cluster.servers[at].kill();
        }
    }
    fleet.check(collector.address());
}

#[test]
fn a_store_that_accepts_and_says_nothing_keeps_no_agent_and_no_connection_to_nats_waiting() {
    let scratch = Scratch::new();
    let (server, mut nats) = (Server::shared(), Nats::start());
    let way = Way::to(&server.database(), scratch.path());
    let place = Place::new(way.url(), &nats.url(), &[]);
    let collector = place.serve();
    let mut fleet = place.fleet(&collector, &["a", "b", "c"]);
    let address = collector.address();
    let mut random = Random::default();
    fleet.send_once(address, &mut random);
    way.fall_silent(true);
    let reader = fleet.reader.clone();
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let reader = reader.clone();
            let head = "GET /api/v1/groups HTTP/1.1";
            std::thread::spawn(move || request(address, head, &reader, ""))
        })
        .collect();
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(8) {
        for agent in &fleet.agents {
            let began = Instant::now();
            // Signs of life may come to nothing, and are answered.
            let life = agent.show_life(address).expect("it answers");
            assert_eq!(life.0, 200, "{life:?}");
            slowest = slowest.max(began.elapsed());
        }
        let began = Instant::now();
        fleet.send_once(address, &mut random);
        slowest = slowest.max(began.elapsed() / 3);
    }
    assert!(slowest < Duration::from_secs(8), "{slowest:?}");
    // The name of its server is looked up by a thread.
    nats.kill();
    nats.restart();
    let began = Instant::now();
    fleet.send_once(address, &mut random);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    way.fall_silent(false);
    fleet.check(address);
    for reader in readers {
        // Most were told that too many wait.
        let _ = reader.join().expect("no panic");
    }
}
