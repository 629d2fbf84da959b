use super::*;

#[test]
fn http_without_tls_stays_on_loopback() {
    for (registry, expected) in [
        ("localhost:5000", true),
        ("127.0.0.1:5000", true),
        ("[::1]:5000", true),
        ("[::1]", true),
        ("::1", true),
        ("::2", false),
        ("[::1", false),
        ("[::1]example.org:5000", false),
        ("localhost:x@example.org", false),
        ("localhost.example.org", false),
        ("127.0.0.1.example.org:5000", false),
        ("10.0.0.1:5000", false),
        ("[::2]:5000", false),
    ] {
        assert_eq!(is_loopback(registry), expected, "{registry}");
    }
}

#[test]
fn credentials_go_by_tls_or_stay_on_loopback() {
    for (url, from_https, from_http) in [
        ("https://r.io/token", true, true),
        ("http://r.io/token", false, false),
        ("http://localhost:5001/token", false, true),
        ("http://127.0.0.1/token", false, true),
        ("http://[::1]:5001/token", false, true),
        ("http://[::1]/token", false, true),
        ("http://[::2]/token", false, false),
        ("http://localhost:x@r.io/token", false, false),
        ("http://localhost@r.io:5001/token", false, false),
        ("http://[::1]@r.io/token", false, false),
        ("ftp://localhost/token", false, false),
        ("localhost/token", false, false),
    ] {
        assert_eq!(may_have_credentials(url, "https"), from_https, "{url}");
        assert_eq!(may_have_credentials(url, "http"), from_http, "{url}");
    }
    assert_eq!(host_of("http://localhost:x@r.io/").as_deref(), Some("r.io"));
}

#[test]
fn a_challenge_is_read() {
    let text = r#"Bearer realm="https://r.io/token",service="r.io",scope="x""#;
    assert_eq!(
        parameter(text, "realm").as_deref(),
        Some("https://r.io/token")
    );
    assert_eq!(parameter(text, "none"), None);
}
