use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest,
};

use super::*;
use crate::channel::testing::deliveries;
use crate::format::Format;

struct Request {
    line: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

fn request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    (stream.read_line(&mut line).ok()? > 0).then_some(())?;
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    let line = line.trim_end().to_owned();
    Some(Request {
        line,
        headers,
        body,
    })
}

/// A collector that answers one request after another: status line and headers, and body.
fn collector(answers: Vec<(&'static str, Vec<u8>)>) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/logs", listener.local_addr().unwrap());
    let (sender, got) = channel();
    thread::spawn(move || {
        for (head, body) in answers {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let Some(request) = request(&mut stream) else {
                return;
            };
            let length = body.len();
            let head =
                format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            stream.get_mut().write_all(head.as_bytes()).unwrap();
            stream.get_mut().write_all(&body).unwrap();
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (url, got)
}

fn options(url: &str, encoding: Encoding) -> OtlpOptions {
    OtlpOptions {
        url: url.to_owned(),
        encoding,
        headers: vec![("x-scope".to_owned(), "north".to_owned())],
        compress: false,
        resource: vec![("service.name".to_owned(), "s".to_owned())],
        tls: TlsOptions::default(),
        timeout: Duration::from_millis(500),
    }
}

fn opened(options: OtlpOptions) -> OtlpChannel {
    let mut channel = OtlpChannel::open(options).unwrap();
    channel.outage = Outage::of_at_most(Duration::from_secs(1));
    channel
}

#[test]
fn a_batch_is_one_request_in_protobuf() {
    let (url, got) = collector(vec![("200 OK", vec![])]);
    opened(options(&url, Encoding::Protobuf))
        .deliver(&deliveries(3, Format::default()))
        .unwrap();
    let request = got.recv().unwrap();
    assert_eq!(request.line, "POST /v1/logs HTTP/1.1");
    assert_eq!(request.headers["content-type"], "application/x-protobuf");
    assert_eq!(request.headers["x-scope"], "north");
    assert!(request.headers["user-agent"].starts_with("tollgate/"));
    let request = ExportLogsServiceRequest::decode(&*request.body).unwrap();
    let records = &request.resource_logs[0].scope_logs[0].log_records;
    assert_eq!(records.len(), 3);
}

#[test]
fn json_has_the_names_and_numbers_of_the_specification() {
    let (url, got) = collector(vec![("200 OK", b"{}".to_vec())]);
    let alerts = deliveries(1, Format::default());
    opened(options(&url, Encoding::Json))
        .deliver(&alerts)
        .unwrap();
    let request = got.recv().unwrap();
    assert_eq!(request.headers["content-type"], "application/json");
    let json: Value = serde_json::from_slice(&request.body).unwrap();
    let logs = &json["resourceLogs"][0];
    let attributes = &logs["resource"]["attributes"];
    assert_eq!(attributes[0]["key"], "service.name");
    assert_eq!(attributes[0]["value"]["stringValue"], "s");
    let record = &logs["scopeLogs"][0]["logRecords"][0];
    // 64 bits are a text, and an enumeration is a number.
    let time = alerts[0].alert().time_ns.to_string();
    assert_eq!(record["timeUnixNano"], time);
    assert_eq!(record["severityNumber"], 10);
    assert_eq!(record["body"]["stringValue"], "n=0");
}

#[test]
fn a_compressed_body_says_so() {
    let (url, got) = collector(vec![("200 OK", vec![])]);
    let options = OtlpOptions {
        compress: true,
        ..options(&url, Encoding::Protobuf)
    };
    opened(options)
        .deliver(&deliveries(1, Format::default()))
        .unwrap();
    let request = got.recv().unwrap();
    assert_eq!(request.headers["content-encoding"], "gzip");
    let mut body = Vec::new();
    GzDecoder::new(&*request.body)
        .read_to_end(&mut body)
        .unwrap();
    ExportLogsServiceRequest::decode(&*body).unwrap();
}

#[test]
fn records_that_a_collector_refuses_in_part_are_counted_apart() {
    let partial = ExportLogsServiceResponse {
        partial_success: Some(ExportLogsPartialSuccess {
            rejected_log_records: 2,
            error_message: "too old".to_owned(),
        }),
    };
    let warning = ExportLogsServiceResponse {
        partial_success: Some(ExportLogsPartialSuccess {
            rejected_log_records: 0,
            error_message: "slow down".to_owned(),
        }),
    };
    let json = |number: &str| {
        let text = format!(
            r#"{{"partialSuccess":{{"rejectedLogRecords":{number},"errorMessage":"too old"}}}}"#
        );
        text.into_bytes()
    };
    for (encoding, body, rejected) in [
        (Encoding::Protobuf, partial.encode_to_vec(), 2),
        (Encoding::Protobuf, warning.encode_to_vec(), 0),
        (Encoding::Json, json("\"2\""), 2),
        (Encoding::Json, json("2"), 2),
        (Encoding::Json, json("\"0\""), 0),
        (Encoding::Json, json("99"), 3),
    ] {
        let (url, _got) = collector(vec![("200 OK", body)]);
        let result = opened(options(&url, encoding)).deliver(&deliveries(3, Format::default()));
        match result {
            Ok(()) => assert_eq!(rejected, 0),
            Err(error) => {
                assert_eq!((error.rejected, error.delivered), (rejected, 3 - rejected));
                assert!(error.source.to_string().ends_with("too old"), "{error:?}");
            }
        }
    }
}

#[test]
fn alerts_whose_answer_cannot_be_read_are_not_delivered() {
    let html = b"<html>Welcome</html>".to_vec();
    let json = |text: &str| (Encoding::Json, text.as_bytes().to_vec());
    for (encoding, body) in [
        (Encoding::Protobuf, html.clone()),
        (Encoding::Json, html),
        (Encoding::Protobuf, vec![0; 65 << 10]),
        (Encoding::Json, vec![b' '; 65 << 10]),
        json("[]"),
        json(r#"{"partialSuccess":7}"#),
        json(r#"{"partialSuccess":{"rejectedLogRecords":"all"}}"#),
        json(r#"{"partialSuccess":{"rejectedLogRecords":-1}}"#),
    ] {
        let story = String::from_utf8_lossy(&body[..20.min(body.len())]).into_owned();
        let (url, _got) = collector(vec![("200 OK", body)]);
        let result = opened(options(&url, encoding)).deliver(&deliveries(2, Format::default()));
        let error = result.expect_err(&story);
        assert_eq!((error.delivered, error.rejected), (0, 2), "{story}");
        let said = error.source.to_string();
        assert!(
            said.starts_with("cannot read the answer of the collector: "),
            "{said}"
        );
    }
}

#[test]
fn an_answer_without_a_refusal_is_a_delivery() {
    for (encoding, body) in [
        (Encoding::Protobuf, ""),
        (Encoding::Json, ""),
        (Encoding::Json, "{}"),
        (Encoding::Json, r#"{"partialSuccess":{}}"#),
        (Encoding::Json, r#"{"partialSuccess":null}"#),
    ] {
        let (url, _got) = collector(vec![("200 OK", body.as_bytes().to_vec())]);
        opened(options(&url, encoding))
            .deliver(&deliveries(2, Format::default()))
            .unwrap_or_else(|error| panic!("{body}: {error:?}"));
    }
}

#[test]
fn only_statuses_that_may_pass_are_tried_again() {
    for status in [
        "429 Too Many Requests",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "504 Gateway Timeout",
    ] {
        let (url, got) = collector(vec![(status, vec![]), ("200 OK", vec![])]);
        opened(options(&url, Encoding::Protobuf))
            .deliver(&deliveries(2, Format::default()))
            .unwrap_or_else(|error| panic!("{status}: {error:?}"));
        let bodies: Vec<_> = got.iter().take(2).map(|request| request.body).collect();
        assert_eq!(bodies[0], bodies[1], "{status}");
    }
    for status in [
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "500 Oops",
    ] {
        let (url, _got) = collector(vec![(status, vec![]), ("200 OK", vec![])]);
        let error = opened(options(&url, Encoding::Protobuf))
            .deliver(&deliveries(2, Format::default()))
            .unwrap_err();
        assert_eq!((error.delivered, error.rejected), (0, 2), "{status}");
        let code = status.split(' ').next().unwrap();
        let said = error.source.to_string();
        assert!(
            said.starts_with(&format!("the collector answered {code}")),
            "{said}"
        );
    }
}

#[test]
fn the_pause_that_a_collector_asks_for_is_kept() {
    let head = "503 Service Unavailable\r\nRetry-After: 1";
    let (url, got) = collector(vec![(head, vec![]), ("200 OK", vec![])]);
    let began = Instant::now();
    opened(options(&url, Encoding::Protobuf))
        .deliver(&deliveries(1, Format::default()))
        .unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(got.iter().take(2).count(), 2);
}

#[test]
fn a_pause_is_in_seconds_or_until_a_date() {
    let now: Timestamp = "2026-10-21T07:27:30Z".parse().unwrap();
    for (text, seconds) in [
        ("120", Some(120)),
        ("Wed, 21 Oct 2026 07:28:00 GMT", Some(30)),
        ("Wed, 21 Oct 2026 07:00:00 GMT", Some(0)),
        ("soon", None),
    ] {
        assert_eq!(
            retry_after(text, now),
            seconds.map(Duration::from_secs),
            "{text}"
        );
    }
}

#[test]
fn alerts_are_lost_in_time_while_nobody_listens_or_answers() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let mut away = opened(options(&format!("http://{address}/"), Encoding::Protobuf));
    let error = away.deliver(&deliveries(1, Format::default())).unwrap_err();
    assert_eq!((error.delivered, error.rejected), (0, 0));
    assert_eq!(error.source.kind(), ErrorKind::ConnectionRefused);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let mut channel = opened(options(&url, Encoding::Protobuf));
    let error = channel
        .deliver(&deliveries(1, Format::default()))
        .unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::TimedOut);
    assert!(channel.peer().timeouts() >= 1);
}

#[test]
fn a_wrong_address_or_header_stops_the_start() {
    let wrong = options("ftp://c/", Encoding::Json);
    let error = OtlpChannel::open(wrong).unwrap_err().to_string();
    assert!(error.contains("it has to start with http://"), "{error}");
    let wrong = OtlpOptions {
        headers: vec![("content-type".to_owned(), "x".to_owned())],
        ..options("http://c/", Encoding::Json)
    };
    let error = OtlpChannel::open(wrong).unwrap_err().to_string();
    assert!(error.contains("cannot send the header"), "{error}");
}
