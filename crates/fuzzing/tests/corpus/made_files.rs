//! Seeds of the targets `artifact`, `engine_state`, `grpc_frames` and `identity` in binary formats.

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tar::{Builder, Header};

use crate::made::{Seed, bytes, message, number};

/// Returns the seeds.
pub(crate) fn seeds() -> Vec<Seed> {
    let after = |letter: &str, rest: &[u8]| [letter.as_bytes(), rest].concat();
    let rules = "- list: l\n  items: [a]\n";
    let suite = "rules: [r.yaml]\n";
    let keys = fuzzing::provider_keys();
    let mut forged = fuzzing::provider_token();
    forged.replace_range(forged.len() - 4.., "AAAA");
    vec![
        (
            "artifact",
            "layer",
            after("l", &layer(&[("r.yaml", rules), ("tests/t.yaml", suite)])),
        ),
        (
            "artifact",
            "refused-layer-without-rules",
            after("l", &layer(&[("tests/t.yaml", suite)])),
        ),
        (
            "engine_state",
            "containerd-database",
            after("b", &containerd()),
        ),
        ("engine_state", "podman-database", after("p", &podman())),
        ("grpc_frames", "alerts", [alert(), alert()].concat()),
        ("grpc_frames", "refused-cut-off", alert()[..20].to_vec()),
        ("identity", "keys", after("k", keys.as_bytes())),
        (
            "identity",
            "token",
            after("t", fuzzing::provider_token().as_bytes()),
        ),
        (
            "identity",
            "refused-forged-token",
            after("t", forged.as_bytes()),
        ),
    ]
}

fn layer(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::none()));
    for (path, text) in files {
        let mut header = Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        builder
            .append_data(&mut header, path, text.as_bytes())
            .expect("memory takes it");
    }
    let encoder = builder.into_inner().expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

fn alert() -> Vec<u8> {
    let content = message(|out| {
        bytes(out, 1, &message(|out| number(out, 1, 1_800_000_000)));
        number(out, 2, 4);
        bytes(out, 4, b"R");
        bytes(out, 5, b"a file was opened");
        let pair = message(|out| {
            bytes(out, 1, b"fd.name");
            bytes(out, 2, b"/etc/shadow");
        });
        bytes(out, 6, &pair);
        bytes(out, 8, b"host");
    });
    let length = u32::try_from(content.len()).expect("a short one");
    [&[0][..], &length.to_be_bytes(), &content].concat()
}

/// An entry of a bucket: a value, or the number of the page of a bucket.
enum Item<'i> {
    Value(&'i str, &'i [u8]),
    Bucket(&'i str, u64),
}

fn containerd() -> Vec<u8> {
    database(&[
        &[Item::Bucket("v1", 3)],
        &[Item::Bucket("k8s.io", 4)],
        &[Item::Bucket("containers", 5)],
        &[Item::Bucket("c0ffee", 6)],
        &[
            Item::Value("image", b"docker.io/library/nginx:1"),
            Item::Bucket("labels", 7),
        ],
        &[
            Item::Value("io.kubernetes.container.name", b"web"),
            Item::Value("io.kubernetes.pod.name", b"shop"),
        ],
    ])
}

fn podman() -> Vec<u8> {
    let config = json!({
        "name": "web", "rootfsImageName": "nginx:1", "privileged": true, "labels": {"a": "b"},
        "healthcheck": {"Test": ["CMD", "true"]},
    });
    database(&[
        &[Item::Bucket("ctr", 3)],
        &[Item::Bucket("c0ffee", 4)],
        &[Item::Value("config", config.to_string().as_bytes())],
    ])
}

/// Writes a bbolt file with a page for each bucket. The first one is the root.
fn database(buckets: &[&[Item<'_>]]) -> Vec<u8> {
    const SIZE: usize = 512;
    let mut file = Vec::new();
    for transaction in [1_u64, 2] {
        let mut page = header(4, 0);
        let mut meta = Vec::new();
        for word in [0xed0c_daed_u32, 2, 512, 0] {
            meta.extend(word.to_le_bytes());
        }
        for word in [2_u64, 0, 0, 0, transaction] {
            meta.extend(word.to_le_bytes());
        }
        let sum = meta.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        meta.extend(sum.to_le_bytes());
        page.extend(meta);
        page.resize(SIZE, 0);
        file.extend(page);
    }
    for items in buckets {
        let mut page = header(2, u16::try_from(items.len()).expect("few"));
        let mut data = Vec::new();
        for (place, item) in items.iter().enumerate() {
            let (flags, key, value) = match item {
                Item::Value(key, value) => (0_u32, *key, value.to_vec()),
                Item::Bucket(key, root) => (1, *key, [root.to_le_bytes(), [0; 8]].concat()),
            };
            let offset = (items.len() - place) * 16 + data.len();
            page.extend(flags.to_le_bytes());
            for number in [offset, key.len(), value.len()] {
                page.extend(u32::try_from(number).expect("short").to_le_bytes());
            }
            data.extend(key.as_bytes());
            data.extend(value);
        }
        page.extend(data);
        assert!(page.len() <= SIZE, "a bucket fits a page");
        page.resize(SIZE, 0);
        file.extend(page);
    }
    file
}

/// The header of a page with this many elements.
fn header(flags: u16, count: u16) -> Vec<u8> {
    let mut page = vec![0; 8];
    page.extend(flags.to_le_bytes());
    page.extend(count.to_le_bytes());
    page.extend([0; 4]);
    page
}
