use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, date_time_ymd};
use testing::Authority;

use super::*;

struct Fixture {
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self {
            authority: Authority::new(),
            folder: tempfile::tempdir().expect("a folder for temporary files"),
        };
        fixture.write("ca", &fixture.authority.pem);
        fixture
    }

    /// Issues a certificate of the agent `web/box-1`.
    fn issue(
        &self,
        serial: u64,
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        issued_by(&self.authority, serial, change)
    }

    fn write(&self, name: &str, text: &str) {
        // In place of the other, as a program that fetches lists does it.
        let new = self.folder.path().join("new");
        fs::write(&new, text).expect("writable");
        fs::rename(new, self.folder.path().join(name)).expect("writable");
    }

    fn files(&self, lists: Option<&str>, report: fn(&str)) -> ClientAuthorities {
        ClientAuthorities {
            certificates: self.folder.path().join("ca"),
            revocations: lists.map(|name| self.folder.path().join(name)),
            report,
        }
    }

    fn load(&self, lists: Option<&str>, report: fn(&str)) -> Arc<Authorities> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let loaded = Authorities::load(self.files(lists, report), provider);
        Arc::new(loaded.expect("good files"))
    }
}

fn issued_by(
    authority: &Authority,
    serial: u64,
    change: impl FnOnce(&mut CertificateParams),
) -> CertificateDer<'static> {
    let issued = authority.issue(serial, &["tollgate://web/box-1"], change);
    issued.certificate.der().clone()
}

fn presented(
    authorities: &Arc<Authorities>,
    certificate: CertificateDer<'static>,
) -> ClientCertificate {
    ClientCertificate::new(&[certificate], authorities).expect("there is one")
}

/// Returns what a certificate is, at the beginning of this test.
fn uris(
    authorities: &Arc<Authorities>,
    certificate: CertificateDer<'static>,
) -> Result<Vec<String>, CertificateRefusal> {
    presented(authorities, certificate).uris()
}

#[test]
fn a_certificate_counts_if_an_authority_issued_it_for_clients_and_for_now() {
    let fixture = Fixture::new();
    let authorities = fixture.load(None, |_| {});
    let issue = |change: fn(&mut CertificateParams)| fixture.issue(1, change);
    let named = Ok(vec!["tollgate://web/box-1".to_owned()]);
    assert_eq!(uris(&authorities, issue(|_| {})), named);
    let for_clients =
        issue(|it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    assert_eq!(uris(&authorities, for_clients), named);
    let for_servers =
        issue(|it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    let refusal = uris(&authorities, for_servers).expect_err("it is for servers");
    assert!(
        matches!(refusal, CertificateRefusal::Invalid { .. }),
        "{refusal}"
    );
    let expired = issue(|it| it.not_after = date_time_ymd(2021, 1, 1));
    let early = issue(|it| it.not_before = date_time_ymd(2999, 1, 1));
    let foreign = issued_by(&Authority::new(), 1, |_| {});
    for (certificate, refusal) in [
        (expired, CertificateRefusal::Expired),
        (early, CertificateRefusal::Early),
    ] {
        assert_eq!(uris(&authorities, certificate), Err(refusal));
    }
    // The name of its issuer is right, the signature is not.
    let refusal = uris(&authorities, foreign).expect_err("the authority is another");
    assert!(
        matches!(
            refusal,
            CertificateRefusal::Foreign | CertificateRefusal::Invalid { .. }
        ),
        "{refusal}"
    );
}

#[test]
fn a_list_refuses_its_serial_numbers_and_without_one_in_force_nobody_is_known() {
    let fixture = Fixture::new();
    fixture.write("list", &fixture.authority.revoke(7, 2999));
    fixture.write("old", &fixture.authority.revoke(7, 2021));
    let issue = |serial| fixture.issue(serial, |_| {});
    let authorities = fixture.load(Some("list"), |_| {});
    assert!(uris(&authorities, issue(8)).is_ok());
    let revoked = uris(&authorities, issue(7));
    assert_eq!(revoked, Err(CertificateRefusal::Revoked));
    let outdated = fixture.load(Some("old"), |_| {});
    assert_eq!(uris(&outdated, issue(8)), Err(CertificateRefusal::OldList));
    // A list that its issuer did not sign.
    fixture.write("foreign", &Authority::new().revoke(7, 2999));
    let foreign = fixture.load(Some("foreign"), |_| {});
    uris(&foreign, issue(8)).expect_err("the list is another authority's");
}

#[test]
fn a_list_that_changes_counts_at_once_on_open_connections_and_one_that_goes_lets_nobody_in() {
    static REPORTS: AtomicUsize = AtomicUsize::new(0);
    let fixture = Fixture::new();
    fixture.write("list", &fixture.authority.revoke(7, 2999));
    let authorities = fixture.load(Some("list"), |problem| {
        assert!(problem.contains("list"), "{problem}");
        REPORTS.fetch_add(1, Ordering::Relaxed);
    });
    let issue = |serial| fixture.issue(serial, |_| {});
    let connections = [7, 8].map(|serial| presented(&authorities, issue(serial)));
    let results = || connections.each_ref().map(|it| it.uris().map(drop));
    assert_eq!(results(), [Err(CertificateRefusal::Revoked), Ok(())]);
    fixture.write("list", &fixture.authority.revoke(8, 2999));
    assert_eq!(results(), [Ok(()), Err(CertificateRefusal::Revoked)]);
    assert_eq!(REPORTS.load(Ordering::Relaxed), 0);
    for damage in [
        "",
        "nonsense",
        "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
    ] {
        REPORTS.store(0, Ordering::Relaxed);
        fixture.write("list", damage);
        for _ in 0..2 {
            let unreadable = [(); 2].map(|()| Err(CertificateRefusal::Unreadable));
            assert_eq!(results(), unreadable, "{damage}");
        }
        assert_eq!(REPORTS.load(Ordering::Relaxed), 1, "{damage}");
    }
    fs::remove_file(fixture.folder.path().join("list")).expect("it is there");
    assert_eq!(results()[0], Err(CertificateRefusal::Unreadable));
    REPORTS.store(0, Ordering::Relaxed);
    fixture.write("list", &fixture.authority.revoke(9, 2021));
    assert_eq!(
        results(),
        [(); 2].map(|()| Err(CertificateRefusal::OldList))
    );
    assert_eq!(REPORTS.load(Ordering::Relaxed), 1, "once for this list");
    fixture.write("list", &fixture.authority.revoke(9, 2999));
    assert_eq!(results(), [Ok(()), Ok(())]);
}

#[test]
fn what_refuses_all_agents_is_said_with_its_cause_and_what_to_do() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let said = || std::mem::take(&mut *SAID.lock().expect("no panic"));
    let fixture = Fixture::new();
    fixture.write("list", &fixture.authority.revoke(7, 2999));
    let authorities = fixture.load(Some("list"), |problem| {
        SAID.lock().expect("no panic").push(problem.to_owned());
    });
    let connection = presented(&authorities, fixture.issue(8, |_| {}));
    let path = fixture.folder.path().join("list");
    let is_refused = |parts: &[&str]| {
        for _ in 0..2 {
            assert_eq!(connection.uris(), Err(CertificateRefusal::Unreadable));
        }
        let said = said();
        assert_eq!(said.len(), 1, "{said:?}");
        for part in parts {
            assert!(said[0].contains(part), "{part} in {said:?}");
        }
    };
    fixture.write("list", "nonsense");
    is_refused(&["no PEM list", "\n  help: put a correct file there"]);
    fs::remove_file(&path).expect("it is there");
    is_refused(&[
        "cannot read ",
        "No such file",
        "\n  help: put the file there",
    ]);
    // Nobody may read it; root may.
    fixture.write("list", &fixture.authority.revoke(8, 2999));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("it is ours");
    if testing::is_root() {
        assert_eq!(connection.uris(), Err(CertificateRefusal::Revoked));
        assert_eq!(said(), [""; 0]);
    } else {
        is_refused(&["Permission denied"]);
    }
    // As the kernel answers a collector that has confined itself.
    let denied = ServeError::from(TlsError::Read {
        path: "/etc/agents.crl".into(),
        source: io::ErrorKind::PermissionDenied.into(),
    });
    let text = nobody_accepted(&denied);
    for part in [
        "no certificate of an agent is accepted: cannot read /etc/agents.crl: permission denied",
        "\n  help: let the collector read it",
        "restart the collector",
        "a folder of its own",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn expiry_is_noticed_on_an_open_connection_within_a_minute() {
    let fixture = Fixture::new();
    let authorities = fixture.load(None, |_| {});
    let certificate = fixture.issue(1, |it| it.not_after = date_time_ymd(2030, 1, 1));
    let connection = presented(&authorities, certificate);
    let end = date_time_ymd(2030, 1, 1).unix_timestamp();
    let at = |seconds: i64| {
        let since = u64::try_from(end + seconds).expect("after 1970");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(since));
        connection.uris_at(now).map(drop)
    };
    assert_eq!(at(-30), Ok(()));
    assert_eq!(at(31), Err(CertificateRefusal::Expired));
    // A clock that is set back is no reason to believe an older result.
    assert_eq!(at(-30), Ok(()));
}

#[test]
fn files_that_are_not_what_they_should_be_are_errors_at_the_start() {
    let fixture = Fixture::new();
    fixture.write("empty", "");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let load = |certificates: &str, lists: Option<&str>| {
        let files = ClientAuthorities {
            certificates: fixture.folder.path().join(certificates),
            ..fixture.files(lists, |_| {})
        };
        let loaded = Authorities::load(files, Arc::clone(&provider));
        loaded.expect_err("it is refused").to_string()
    };
    for (certificates, lists, problem) in [
        ("none", None, "cannot read "),
        ("empty", None, "the file has no PEM certificate"),
        ("ca", Some("none"), "cannot read "),
        (
            "ca",
            Some("ca"),
            "the file has no PEM list of revoked certificates",
        ),
    ] {
        let error = load(certificates, lists);
        let name = lists.unwrap_or(certificates);
        assert!(error.contains(problem) && error.contains(name), "{error}");
    }
}
