//! The file by which `kubectl` finds a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use yaml::{Kind, Node};

use crate::access::{Access, AccessError, Credential};

/// Keys of a user that are not supported. Each would change who the client is.
const USER: [&str; 8] = [
    "exec",
    "auth-provider",
    "username",
    "password",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
];
/// Keys of a cluster that are not supported.
const CLUSTER: [&str; 3] = ["insecure-skip-tls-verify", "proxy-url", "tls-server-name"];

/// Reads the access of the current context.
pub(crate) fn read(path: &Path) -> Result<Access, AccessError> {
    let text = crate::access::read(&path.to_owned())?;
    let file = File {
        path,
        folder: path.parent().unwrap_or(Path::new(".")),
    };
    let text =
        String::from_utf8(text).map_err(|error| file.wrong(format!("it is not UTF-8: {error}")))?;
    let name: Arc<str> = path.display().to_string().into();
    let (documents, problem) = yaml::read(&name, &text);
    if let Some(problem) = problem {
        let (line, message) = (problem.location.line, problem.message);
        return Err(file.wrong(format!("line {line}: {message}")));
    }
    let [root] = &documents[..] else {
        return Err(file.wrong(format!(
            "it has {} documents, and has to have one",
            documents.len()
        )));
    };
    let current = file.text(root, "current-context")?;
    let context = file.named(root, "contexts", "context", &current)?;
    let cluster = file.named(root, "clusters", "cluster", &file.text(context, "cluster")?)?;
    let user = file.named(root, "users", "user", &file.text(context, "user")?)?;
    file.refuse(cluster, &CLUSTER)?;
    file.refuse(user, &USER)?;
    let token = match get(user, "token").and_then(Node::scalar) {
        Some(token) => Some(Credential::Inline {
            content: token.text().as_bytes().to_vec(),
            within: path.to_owned(),
        }),
        None => file.file(user, "tokenFile"),
    };
    let certificate = file.credential(user, "client-certificate")?;
    let key = file.credential(user, "client-key")?;
    if certificate.is_some() != key.is_some() {
        return Err(file.wrong("a client certificate needs its key, and a key its certificate"));
    }
    Ok(Access {
        server: file.text(cluster, "server")?,
        authority: file.credential(cluster, "certificate-authority")?,
        token,
        client: certificate.zip(key),
    })
}

struct File<'a> {
    path: &'a Path,
    /// Relative paths are meant from here.
    folder: &'a Path,
}

impl File<'_> {
    fn wrong(&self, problem: impl Into<String>) -> AccessError {
        AccessError::Kubeconfig {
            path: self.path.to_owned(),
            problem: problem.into(),
        }
    }

    fn text(&self, node: &Node, key: &str) -> Result<String, AccessError> {
        let text = get(node, key)
            .and_then(Node::scalar)
            .map(|text| text.text().to_owned());
        let text = text.filter(|text| !text.is_empty());
        let line = node.location.line;
        text.ok_or_else(|| self.wrong(format!("line {line}: `{key}` is missing, or is no text")))
    }

    /// The part `key` of the item of a list that has a name.
    fn named<'n>(
        &self,
        root: &'n Node,
        list: &str,
        key: &str,
        name: &str,
    ) -> Result<&'n Node, AccessError> {
        let items = match get(root, list).map(|list| &list.kind) {
            Some(Kind::Sequence(items)) => items.as_slice(),
            _ => &[],
        };
        let is_named = |item: &&Node| {
            let own = get(item, "name").and_then(Node::scalar);
            own.is_some_and(|own| own.text() == name)
        };
        let found = items.iter().find(is_named).and_then(|item| get(item, key));
        found.ok_or_else(|| self.wrong(format!("`{list}` has no `{key}` with the name `{name}`")))
    }

    fn refuse(&self, node: &Node, keys: &[&str]) -> Result<(), AccessError> {
        let given = keys
            .iter()
            .find(|key| get(node, key).is_some_and(|value| !value.is_null()));
        match given {
            None => Ok(()),
            Some(key) => Err(self.wrong(format!(
                "`{key}` is not supported: use a token or a client certificate"
            ))),
        }
    }

    fn file(&self, node: &Node, key: &str) -> Option<Credential> {
        let text = get(node, key)?.scalar()?.text().to_owned();
        let path: PathBuf = self.folder.join(text);
        Some(Credential::File(path))
    }

    /// A file by `key`, or its content by `key-data`, which wins.
    fn credential(&self, node: &Node, key: &str) -> Result<Option<Credential>, AccessError> {
        let data = format!("{key}-data");
        let Some(text) = get(node, &data).and_then(Node::scalar) else {
            return Ok(self.file(node, key));
        };
        let content = STANDARD
            .decode(text.text().trim())
            .map_err(|error| self.wrong(format!("`{data}` is no base64: {error}")))?;
        Ok(Some(Credential::Inline {
            content,
            within: self.path.to_owned(),
        }))
    }
}

fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Kind::Mapping(pairs) = &node.kind else {
        return None;
    };
    let is_key = |own: &Node| own.scalar().is_some_and(|own| own.text() == key);
    pairs
        .iter()
        .find(|(own, _)| is_key(own))
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(cluster: &str, user: &str) -> Result<Access, String> {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let path = folder.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: two\ncontexts:\n- {{name: one, context: {{cluster: x, user: \
             x}}}}\n- {{name: two, context: {{cluster: c, user: u}}}}\nclusters:\n- name: c\n  cluster: \
             {{server: 'https://192.0.2.1:6443', {cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        );
        std::fs::write(&path, text).expect("the folder is ours");
        read(&path).map_err(|error| {
            error
                .to_string()
                .replace(&folder.path().display().to_string(), "")
        })
    }

    #[test]
    fn the_current_context_gives_server_authority_and_who_the_client_is() {
        let access = read_text("certificate-authority-data: YWJj", "tokenFile: t").unwrap();
        assert_eq!(access.server, "https://192.0.2.1:6443");
        assert_eq!(access.authority.unwrap().read().unwrap(), b"abc");
        let Some(Credential::File(path)) = access.token else {
            panic!("it is a file");
        };
        assert!(
            path.is_absolute() && path.ends_with("t"),
            "{}",
            path.display()
        );
        let by_key = read_text(
            "certificate-authority: ca",
            "client-certificate-data: YQ==, client-key: k",
        )
        .unwrap();
        assert!(by_key.token.is_none());
        assert_eq!(by_key.client.unwrap().0.read().unwrap(), b"a");
        let inline = read_text("certificate-authority: ca", "token: secret").unwrap();
        assert!(!format!("{inline:?}").contains("secret"), "{inline:?}");
        assert_eq!(inline.token.unwrap().read().unwrap(), b"secret");
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (cluster, user, expected) in [
            (
                "insecure-skip-tls-verify: true",
                "token: a",
                "`insecure-skip-tls-verify` is not supported",
            ),
            ("proxy-url: x", "token: a", "`proxy-url` is not supported"),
            ("", "exec: {command: x}", "`exec` is not supported"),
            (
                "",
                "username: a, password: b",
                "`username` is not supported",
            ),
            ("", "client-certificate: a", "needs its key"),
            (
                "certificate-authority-data: '!'",
                "token: a",
                "is no base64",
            ),
        ] {
            let error = read_text(cluster, user).unwrap_err();
            assert!(
                error.contains(expected) && error.contains("/config"),
                "{error}"
            );
        }
    }
}
