//! What programs need by default: their caches, registries and hosts.

use std::path::{Path, PathBuf};

/// A program, or a family of them.
pub(super) struct Tool {
    /// Names of the programs.
    pub(super) names: &'static [&'static str],
    /// Files and folders that the programs write.
    pub(super) writes: &'static [Written],
    /// Peers that the programs connect to.
    pub(super) peers: &'static [&'static str],
    /// Files below the home directory, or absolute ones, and variables, in which a user names other hosts.
    pub(super) settings: &'static [&'static str],
}

/// A file or folder below the home directory that programs write, and those that make it on their first run.
pub(super) type Written = (&'static str, &'static [&'static str]);

/// Package managers and compilers.
pub(super) const TOOLS: &[Tool] = &[
    Tool {
        names: &["npm", "npx", "node", "yarn", "pnpm", "corepack", "bun"],
        writes: &[
            (".npm", &["npm", "npx"]),
            (".cache", &["npm", "npx", "yarn", "pnpm", "corepack"]),
            (".yarn", &["yarn"]),
            (".local/share/pnpm", &["pnpm"]),
            (".bun/install/cache", &["bun"]),
            (".node-gyp", &[]),
        ],
        peers: &["registry.npmjs.org:443", "registry.yarnpkg.com:443"],
        settings: &[
            ".npmrc",
            "/etc/npmrc",
            "$npm_config_registry",
            "$NPM_CONFIG_REGISTRY",
        ],
    },
    Tool {
        names: &[
            "pip", "pip3", "pipx", "python", "python3", "uv", "uvx", "poetry", "pytest",
        ],
        writes: &[
            (
                ".cache",
                &[
                    "pip", "pip3", "pipx", "python", "python3", "uv", "uvx", "poetry",
                ],
            ),
            (".local/share/uv", &["uv", "uvx"]),
            (".local/share/virtualenv", &["poetry"]),
        ],
        peers: &["pypi.org:443", "files.pythonhosted.org:443"],
        settings: &[
            ".config/pip/pip.conf",
            ".pip/pip.conf",
            "/etc/pip.conf",
            "$PIP_INDEX_URL",
            "$UV_INDEX_URL",
        ],
    },
    Tool {
        names: &["cargo", "rustc", "rustup", "maturin"],
        writes: &[
            (".cargo/registry", &["cargo", "maturin"]),
            (".cargo/git", &["cargo", "maturin"]),
            (".cargo/.package-cache", &["cargo", "maturin"]),
            (".cargo/.package-cache-mutate", &["cargo", "maturin"]),
            (".cargo/.global-cache", &[]),
            (".cache", &[]),
        ],
        peers: &[
            "index.crates.io:443",
            "static.crates.io:443",
            "crates.io:443",
            "static.rust-lang.org:443",
        ],
        settings: &[".cargo/config.toml", ".cargo/config"],
    },
    Tool {
        names: &["go", "gopls"],
        writes: &[
            ("go/pkg", &["go"]),
            (".config/go/telemetry", &["go"]),
            (".cache", &["go", "gopls"]),
        ],
        peers: &[
            "proxy.golang.org:443",
            "sum.golang.org:443",
            "storage.googleapis.com:443",
        ],
        settings: &["$GOPROXY", ".config/go/env"],
    },
    Tool {
        names: &["gem", "bundle", "bundler", "ruby"],
        writes: &[
            (".gem", &[]),
            (".bundle", &["bundle", "bundler"]),
            (".local/share/gem", &["gem"]),
            (".cache", &[]),
        ],
        peers: &["rubygems.org:443", "index.rubygems.org:443"],
        settings: &[".gemrc", ".bundle/config"],
    },
    Tool {
        names: &["mvn", "gradle", "java", "sbt"],
        writes: &[
            (".m2", &["mvn"]),
            (".gradle", &["gradle"]),
            (".cache", &["sbt"]),
        ],
        peers: &[
            "repo.maven.apache.org:443",
            "repo1.maven.org:443",
            "plugins.gradle.org:443",
            "services.gradle.org:443",
        ],
        settings: &[".m2/settings.xml"],
    },
];

/// Coding agents: their own state, and the host that they speak to.
pub(super) const AGENTS: &[Tool] = &[
    Tool {
        names: &["claude"],
        writes: &[(".claude", &["claude"]), (".claude.json", &[])],
        peers: &["api.anthropic.com:443"],
        settings: &["$ANTHROPIC_BASE_URL"],
    },
    Tool {
        names: &["codex"],
        writes: &[(".codex", &["codex"])],
        peers: &["api.openai.com:443", "chatgpt.com:443"],
        settings: &["$OPENAI_BASE_URL"],
    },
    Tool {
        names: &["gemini"],
        writes: &[(".gemini", &["gemini"])],
        peers: &["generativelanguage.googleapis.com:443"],
        settings: &[],
    },
];

/// Hosts of repositories, by https and ssh.
pub(super) const GIT_HOSTS: [&str; 8] = [
    "github.com:443",
    "github.com:22",
    "codeload.github.com:443",
    "raw.githubusercontent.com:443",
    "gitlab.com:443",
    "gitlab.com:22",
    "bitbucket.org:443",
    "codeberg.org:443",
];

/// Variables with the address of a proxy.
const PROXIES: [&str; 6] = [
    "$http_proxy",
    "$https_proxy",
    "$all_proxy",
    "$HTTP_PROXY",
    "$HTTPS_PROXY",
    "$ALL_PROXY",
];

/// The tools that a command uses: its own, or all if the command is none of them and may start any.
pub(super) fn of(command: Option<&Path>) -> Vec<&'static Tool> {
    let name = command
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    let is_own = |tool: &&Tool| name.is_some_and(|name| tool.names.contains(&name));
    let own: Vec<&Tool> = TOOLS.iter().filter(is_own).collect();
    let agents = AGENTS.iter().filter(is_own);
    match own.is_empty() {
        true => agents.chain(TOOLS).collect(),
        false => own,
    }
}

/// Peers that the user's own settings name for a tool, and proxies. Settings in the working directory do not
/// count: the command may write them.
pub(super) fn configured(tool: &Tool, home: &Path) -> Vec<String> {
    let all = tool.settings.iter().chain(&PROXIES);
    all.flat_map(|setting| match setting.strip_prefix('$') {
        Some(variable) => urls(&std::env::var(variable).unwrap_or_default()),
        None => {
            let path: PathBuf = home.join(setting);
            // A missing file names no host.
            urls(&std::fs::read_to_string(path).unwrap_or_default())
        }
    })
    .collect()
}

/// The peers of the URLs in a text.
fn urls(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (scheme, default) in [("https://", "443"), ("http://", "80")] {
        for (at, _) in text.match_indices(scheme) {
            let rest = &text[at + scheme.len()..];
            let end = rest.find(|c: char| c.is_whitespace() || "/\"',|<>?#".contains(c));
            let authority = &rest[..end.unwrap_or(rest.len())];
            let host = authority.rsplit('@').next().unwrap_or_default();
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let peer = match has_port {
                true => host.to_owned(),
                false => format!("{host}:{default}"),
            };
            if policy::AllowedPeer::parse(&peer).is_ok() {
                found.push(peer);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_from_settings() {
        let text = "registry=https://npm.example.org/x/\nindex = \"sparse+http://user:pw@10.0.0.1:8080/i\"\n";
        assert_eq!(urls(text), ["npm.example.org:443", "10.0.0.1:8080"]);
        assert!(urls("https:// nothing").is_empty());
    }

    #[test]
    fn who_makes_a_file_is_a_program_of_the_tool() {
        for tool in TOOLS.iter().chain(AGENTS) {
            for (path, makers) in tool.writes {
                let mut makers = makers.iter();
                assert!(makers.all(|name| tool.names.contains(name)), "{path}");
            }
        }
    }

    #[test]
    fn every_peer_is_valid() {
        let all = TOOLS.iter().chain(AGENTS).flat_map(|tool| tool.peers);
        for peer in all.chain(&GIT_HOSTS) {
            policy::AllowedPeer::parse(peer).expect(peer);
        }
    }

    #[test]
    fn a_package_manager_gets_its_own_registry_and_another_program_all() {
        let names = |command: &str| of(Some(Path::new(command))).len();
        assert_eq!(names("/usr/bin/cargo"), 1);
        assert_eq!(names("bash"), TOOLS.len());
        assert_eq!(names("claude"), TOOLS.len() + 1);
    }
}
