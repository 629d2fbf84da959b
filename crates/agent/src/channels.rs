//! The channels that the configuration asks for.

use std::path::PathBuf;
use std::time::Duration;

use config::{Config, HttpOutput};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::{
    Channel, ClientFiles, FileChannel, HttpChannel, HttpOptions, ProgramChannel, ProgramOptions,
    StdoutChannel, SyslogChannel, TlsOptions,
};

/// Opens what can be opened before the first alert, so that a mistake stops the start.
pub(super) fn open(config: &Config) -> Result<Vec<Box<dyn Channel>>, Failure> {
    let mut channels: Vec<Box<dyn Channel>> = Vec::new();
    if config.stdout_enabled {
        channels.push(Box::new(stdout()?));
    }
    if config.file_output.enabled {
        channels.push(Box::new(file(config)?));
    }
    if config.syslog_enabled {
        let path = PathBuf::from(SyslogChannel::PATH);
        channels.push(Box::new(SyslogChannel::new(path, timeout(config))));
    }
    if config.program_output.enabled {
        channels.push(Box::new(program(config)));
    }
    if config.http_output.enabled {
        channels.push(Box::new(http(config)?));
    }
    Ok(channels)
}

/// How long a channel may take over an alert.
pub(super) fn timeout(config: &Config) -> Duration {
    Duration::from_millis(config.output_timeout_ms)
}

fn stdout() -> Result<StdoutChannel, Failure> {
    StdoutChannel::open().map_err(|error| {
        Failure::new(
            Exit::BadInput,
            format!("cannot write alerts to stdout: {error}"),
        )
        .help("open it, or switch it off with -o stdout_output.enabled=false")
    })
}

fn file(config: &Config) -> Result<FileChannel, Failure> {
    let filename = config.file_output.filename.clone();
    FileChannel::open(filename, config.file_output.keep_alive).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("name a writable file with -o file_output.filename=FILE; a FIFO needs a reader")
    })
}

fn program(config: &Config) -> ProgramChannel {
    let output = &config.program_output;
    ProgramChannel::new(ProgramOptions {
        program: output.program.clone(),
        keep_alive: output.keep_alive,
        timeout: timeout(config),
    })
}

fn http(config: &Config) -> Result<HttpChannel, Failure> {
    let output = &config.http_output;
    let options = HttpOptions {
        url: unquoted(&output.url).to_owned(),
        user_agent: output.user_agent.clone(),
        headers: output.headers.clone(),
        json: config.json_output,
        tls: tls(output),
        echo: output.echo,
        compress: output.compress_uploads,
        keep_alive: output.keep_alive,
        max_consecutive_timeouts: output.max_consecutive_timeouts.into(),
        timeout: timeout(config),
    };
    HttpChannel::open(options).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("see the keys http_output.* in `tollgate man run`")
    })
}

/// Falco takes quotes off that are part of the value.
fn unquoted(url: &str) -> &str {
    let without = |quote| url.strip_prefix(quote)?.strip_suffix(quote);
    without('"').or_else(|| without('\'')).unwrap_or(url)
}

fn tls(output: &HttpOutput) -> TlsOptions {
    let files = [&output.ca_cert, &output.ca_bundle];
    let authorities = files.into_iter().find(|file| !file.as_os_str().is_empty());
    TlsOptions {
        insecure: output.insecure,
        authorities: authorities.cloned(),
        authority_folder: output.ca_path.clone(),
        client: output.mtls.then(|| ClientFiles {
            certificate: output.client_cert.clone(),
            key: output.client_key.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(config: &Config) -> String {
        match open(config) {
            Ok(_) => panic!("opened {config:?}"),
            Err(failure) => failure.render(),
        }
    }

    #[test]
    fn a_url_of_another_kind_is_an_error_with_a_next_step() {
        let http = HttpOutput {
            enabled: true,
            url: "localhost".to_owned(),
            ..HttpOutput::default()
        };
        let text = message(&Config {
            http_output: http,
            ..Config::default()
        });
        assert!(text.contains("it has to start with http://"), "{text}");
        assert!(text.contains("help: "), "{text}");
    }

    #[test]
    fn the_certificate_file_wins_over_the_bundle_and_both_over_the_folder() {
        let output = HttpOutput {
            ca_bundle: "/b".into(),
            ..HttpOutput::default()
        };
        assert_eq!(tls(&output).authorities, Some("/b".into()));
        let output = HttpOutput {
            ca_cert: "/c".into(),
            mtls: true,
            ..output
        };
        assert_eq!(tls(&output).authorities, Some("/c".into()));
        let client = tls(&output).client.expect("mtls is on");
        assert_eq!(client.key, PathBuf::from("/etc/ssl/certs/client.key"));
        let tls = tls(&HttpOutput::default());
        assert_eq!(tls.authorities, None);
        assert_eq!(tls.authority_folder, PathBuf::from("/etc/ssl/certs"));
    }

    #[test]
    fn quotes_that_are_part_of_the_value_are_taken_off() {
        for url in ["http://a/", "\"http://a/\"", "'http://a/'"] {
            assert_eq!(unquoted(url), "http://a/");
        }
        assert_eq!(unquoted("\"http://a/"), "\"http://a/");
    }
}
