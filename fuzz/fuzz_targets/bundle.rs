//! Bundles of rules as a collector sends them: nothing may panic, and none is believed that the key has not signed.

#![no_main]

use std::sync::LazyLock;

use bundle::{PrivateKey, Signed};
use libfuzzer_sys::fuzz_target;

static KEY: LazyLock<PrivateKey> = LazyLock::new(|| PrivateKey::generate().expect("random numbers"));

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(signed) = Signed::parse(text) else {
        return;
    };
    assert!(signed.verify(&KEY.public()).is_err(), "the key is new");
    let _ = (signed.digest(), signed.content());
    let again = Signed::parse(&signed.to_text()).expect("it is a bundle");
    assert_eq!(again.digest(), signed.digest());
    let own = signed.sign(&KEY);
    // Only the content can be refused now.
    assert_eq!(own.verify(&KEY.public()).is_ok(), own.content().is_ok());
});
