//! Agents that send numbered alerts until they are acknowledged, and count what is stored of them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use e2e::collector::{Collector, alert, get, request};
use e2e::until;
use serde_json::{Value, json};

/// A xorshift generator: the same numbers in each run.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// An agent that has enrolled.
pub(crate) struct Agent {
    secret: String,
    host: String,
    acknowledged: u64,
    sent: u64,
}

impl Agent {
    /// Sends alerts with these numbers; `None` if nobody answers.
    pub(crate) fn post(
        &self,
        address: SocketAddr,
        numbers: RangeInclusive<u64>,
    ) -> Option<(u16, Value)> {
        let first = *numbers.start();
        let lines: Vec<String> = numbers.map(|n| alert("R", n)).collect();
        let head = format!("POST /api/v1/batches HTTP/1.1\r\nTollgate-Sequence: {first}");
        request(address, &head, &self.secret, &lines.join("\n"))
    }

    /// Shows a sign of life.
    pub(crate) fn show_life(&self, address: SocketAddr) -> Option<(u16, Value)> {
        request(
            address,
            "PUT /api/v1/inventory HTTP/1.1",
            &self.secret,
            "{}",
        )
    }

    /// Sends what follows the last acknowledged number. Returns what else than an acknowledgement came.
    fn step(
        &mut self,
        address: SocketAddr,
        random: &mut Random,
    ) -> Result<(), Option<(u16, Value)>> {
        let first = self.acknowledged + 1;
        // What was not acknowledged comes again, with more.
        self.sent = self.sent.max(self.acknowledged) + 1 + random.below(4);
        match self.post(address, first..=self.sent) {
            Some((200, answer)) => {
                let acknowledged = answer["acknowledged"].as_u64().expect("a number");
                assert_eq!(acknowledged, self.sent, "{answer}");
                self.acknowledged = acknowledged;
                Ok(())
            }
            other => Err(other),
        }
    }
}

/// Agents of one store.
pub(crate) struct Fleet {
    pub(crate) agents: Vec<Agent>,
    /// Secret of someone who reads.
    pub(crate) reader: String,
}

impl Fleet {
    /// Enrols agents.
    pub(crate) fn new(address: SocketAddr, token: &str, reader: String, hosts: &[&str]) -> Self {
        let enrol = |host: &&str| {
            let body = json!({"host": host}).to_string();
            let answer = request(address, "POST /api/v1/agents HTTP/1.1", token, &body);
            let (status, answer) = answer.expect("it answers");
            assert_eq!(status, 201, "{answer}");
            Agent {
                secret: answer["secret"].as_str().expect("a secret").to_owned(),
                host: (*host).to_owned(),
                acknowledged: 0,
                sent: 0,
            }
        };
        Self {
            agents: hosts.iter().map(enrol).collect(),
            reader,
        }
    }

    /// Lets all send until the time is over, or one is not answered.
    pub(crate) fn send(&mut self, address: SocketAddr, until: Instant, random: &mut Random) {
        while Instant::now() < until {
            for agent in &mut self.agents {
                if let Err(None) = agent.step(address, random) {
                    return;
                }
            }
        }
    }

    /// Lets each send until one of its batches is acknowledged.
    pub(crate) fn send_once(&mut self, address: SocketAddr, random: &mut Random) {
        for agent in &mut self.agents {
            until("a batch is acknowledged", || {
                let is_sent = agent.step(address, random).is_ok();
                if !is_sent {
                    std::thread::sleep(Duration::from_millis(50));
                }
                is_sent
            });
        }
    }

    /// Lets each send one batch. Returns the first refusal.
    pub(crate) fn try_once(
        &mut self,
        address: SocketAddr,
        random: &mut Random,
    ) -> Option<(u16, Value)> {
        let steps = self.agents.iter_mut();
        let refused = steps.filter_map(|agent| agent.step(address, random).err());
        refused.map(|answer| answer.expect("it answers")).next()
    }

    /// Kills the server while all send.
    pub(crate) fn kill_while_sending(
        &mut self,
        collector: &mut Collector,
        random: &mut Random,
    ) -> io::Result<()> {
        let address = collector.address();
        let pause = Duration::from_millis(20 + random.below(60));
        let child = &mut collector.child;
        let killed = std::thread::scope(|scope| {
            let kill = scope.spawn(move || {
                std::thread::sleep(pause);
                child.kill()
            });
            self.send(address, Instant::now() + Duration::from_secs(2), random);
            kill.join().expect("it does not panic")
        });
        collector.child.wait()?;
        killed
    }

    /// Returns host and number of each stored alert, in order.
    pub(crate) fn stored(&self, address: SocketAddr) -> Vec<(String, u64)> {
        let mut stored = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/api/v1/alerts?limit=1000&after={after}");
            let page = get(address, &path, &self.reader);
            for row in page["alerts"].as_array().expect("a list") {
                let host = row["host"].as_str().expect("a host").to_owned();
                let number = row["alert"]["output_fields"]["n"].as_u64();
                stored.push((host, number.expect("a number")));
            }
            match page["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        stored.sort();
        stored
    }

    /// Waits until everything that was acknowledged is stored, and checks that nothing is twice and nothing is missing.
    pub(crate) fn check(&self, address: SocketAddr) {
        let acknowledged: u64 = self.agents.iter().map(|agent| agent.acknowledged).sum();
        // What waits in the queue may be the work of many servers that were killed. It gets less all the time.
        let mut progress = Instant::now();
        let mut stored = self.stored(address);
        while (stored.len() as u64) < acknowledged && progress.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(100));
            let before = stored.len();
            stored = self.stored(address);
            if stored.len() > before {
                progress = Instant::now();
            }
        }
        let mut times: BTreeMap<_, u32> = BTreeMap::new();
        for one in stored {
            *times.entry(one).or_default() += 1;
        }
        let doubled: Vec<_> = times.iter().filter(|(_, count)| **count > 1).collect();
        assert!(doubled.is_empty(), "stored twice: {doubled:?}");
        for agent in &self.agents {
            assert!(agent.acknowledged > 0, "{}", agent.host);
            let is_lost = |n: &u64| !times.contains_key(&(agent.host.clone(), *n));
            let lost: Vec<u64> = (1..=agent.acknowledged).filter(is_lost).collect();
            assert!(lost.is_empty(), "lost of {}: {lost:?}", agent.host);
        }
        let fleet = get(address, "/api/v1/agents", &self.reader);
        for agent in fleet["agents"].as_array().expect("a list") {
            assert_eq!(agent["missing"], 0, "{agent}");
        }
    }
}

/// Returns the value of a metric, `None` if the page does not have it.
pub(crate) fn metric(address: SocketAddr, secret: &str, name: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("a socket");
    let head = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer";
    write!(stream, "{head} {secret}\r\n\r\n").expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    row.map(|value| value.trim().parse().expect("a number"))
}
