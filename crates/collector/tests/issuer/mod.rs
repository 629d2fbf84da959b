//! An identity provider on the loopback, which a test can make lie.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

pub(crate) const CLIENT: &str = "tollgate";
pub(crate) const SECRET: &str = "s:cret %";

/// Makes a token of its header and claims.
pub(crate) type Sign = Box<dyn Fn(&Key, Value, Value) -> String + Send>;

/// A key with its name.
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) pair: Ed25519KeyPair,
}

impl Key {
    pub(crate) fn new(id: &str) -> Self {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Self {
            id: id.to_owned(),
            pair: Ed25519KeyPair::from_pkcs8(pair.as_ref()).expect("a key"),
        }
    }

    fn public(&self) -> Value {
        let x = encode(self.pair.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": self.id, "x": x})
    }

    /// Signs honestly.
    pub(crate) fn token(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        format!("{message}.{}", encode(self.pair.sign(message.as_bytes())))
    }
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the part of a token that is signed.
pub(crate) fn message(header: &Value, claims: &Value) -> String {
    let (header, claims) = (header.to_string(), claims.to_string());
    format!("{}.{}", encode(header), encode(claims))
}

pub(crate) fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.expect("after 1970").as_secs()).expect("small")
}

/// What somebody has been allowed.
struct Grant {
    nonce: String,
    challenge: String,
    is_used: bool,
}

pub(crate) struct State {
    issuer: String,
    /// Keys that are served; the last one signs.
    pub(crate) keys: Vec<Key>,
    grants: HashMap<String, Grant>,
    /// Claims beside those that every token has.
    pub(crate) claims: Value,
    /// Makes the token; `None` for the honest way.
    pub(crate) sign: Option<Sign>,
    /// Neither compares the verifier of PKCE nor takes a code once.
    pub(crate) is_careless: bool,
    /// Members of the document about the provider that differ.
    pub(crate) document: Value,
    /// Requests to the token endpoint.
    pub(crate) exchanges: usize,
}

/// A running provider. Its thread ends with the test program.
pub(crate) struct Issuer {
    state: Arc<Mutex<State>>,
}

impl Issuer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(Mutex::new(State {
            issuer: format!("http://{address}/realm"),
            keys: vec![Key::new("first")],
            grants: HashMap::new(),
            claims: json!({"sub": "1", "preferred_username": "ann", "groups": ["ops"]}),
            sign: None,
            is_careless: false,
            document: json!({}),
            exchanges: 0,
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away in the middle is no matter of the provider's.
                let _ = serve(stream, &shared);
            }
        });
        Self { state }
    }

    pub(crate) fn issuer(&self) -> String {
        self.state().issuer.clone()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a user in who has come with these parameters, and returns the code.
    pub(crate) fn grant(&self, asked: &BTreeMap<String, String>) -> String {
        let mut state = self.state();
        let code = format!("code-{}", state.grants.len());
        let grant = Grant {
            nonce: asked["nonce"].clone(),
            challenge: asked["code_challenge"].clone(),
            is_used: false,
        };
        state.grants.insert(code.clone(), grant);
        code
    }
}

impl State {
    fn document(&self) -> Value {
        let at = |path: &str| format!("{}/{path}", self.issuer);
        let mut document = json!({
            "issuer": self.issuer,
            "authorization_endpoint": at("auth?tenant=1"),
            "token_endpoint": at("token"),
            "jwks_uri": at("keys"),
            "end_session_endpoint": at("logout"),
            "code_challenge_methods_supported": ["S256"],
        });
        for (name, value) in self.document.as_object().expect("an object") {
            document[name] = value.clone();
        }
        document
    }

    /// Exchanges a code for a token, or returns the error.
    fn exchange(
        &mut self,
        authorization: &str,
        form: &BTreeMap<String, String>,
    ) -> Result<Value, &'static str> {
        self.exchanges += 1;
        // The credentials are encoded as in a form before they are joined.
        let expected = format!("Basic {}", STANDARD.encode("tollgate:s%3Acret+%25"));
        if authorization != expected || form["grant_type"] != "authorization_code" {
            return Err("invalid_client");
        }
        let (is_careless, code) = (self.is_careless, &form["code"]);
        let grant = self.grants.get_mut(code).ok_or("invalid_grant")?;
        let challenge = encode(digest(&SHA256, form["code_verifier"].as_bytes()));
        if !is_careless && (grant.is_used || challenge != grant.challenge) {
            return Err("invalid_grant");
        }
        grant.is_used = true;
        let mut claims = json!({
            "iss": self.issuer, "aud": CLIENT, "nonce": grant.nonce,
            "exp": now_s() + 300, "iat": now_s(),
        });
        for (name, value) in self.claims.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        let key = self.keys.last().expect("a key");
        let header = json!({"alg": "EdDSA", "kid": key.id});
        let token = match &self.sign {
            Some(sign) => sign(key, header, claims),
            None => key.token(&header, &claims),
        };
        Ok(json!({"token_type": "Bearer", "access_token": "unused", "id_token": token}))
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("").to_owned();
    let (mut authorization, mut length) = (String::new(), 0);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => authorization = value.to_owned(),
            "content-length" => length = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, answer) = match &*path {
        "/realm/.well-known/openid-configuration" => (200, state.document()),
        "/realm/keys" => {
            let keys: Vec<_> = state.keys.iter().map(Key::public).collect();
            (200, json!({"keys": keys}))
        }
        "/realm/token" => {
            let form = serde_urlencoded::from_bytes(&body).expect("a form");
            match state.exchange(&authorization, &form) {
                Ok(answer) => (200, answer),
                Err(error) => (400, json!({"error": error})),
            }
        }
        _ => (404, json!({})),
    };
    drop(state);
    let text = answer.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}
