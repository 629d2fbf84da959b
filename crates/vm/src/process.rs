//! The process to start in a machine: `process` of the OCI configuration.

use std::time::{SystemTime, UNIX_EPOCH};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use runtime::Call;
use serde_json::{Value, json};

/// Content of a start frame: the current time, which a machine does not know precisely, and the
/// process.
pub(super) fn start(process: &[u8]) -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let nanoseconds = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let mut content = nanoseconds.to_le_bytes().to_vec();
    content.extend_from_slice(process);
    content
}

/// Parses the content of a start frame: the time in nanoseconds and the process.
pub(super) fn started(content: &[u8]) -> Option<(u64, Value)> {
    let (time, process) = content.split_first_chunk()?;
    Some((
        u64::from_le_bytes(*time),
        serde_json::from_slice(process).ok()?,
    ))
}

/// Returns the process that `exec` asks for: `--process FILE`, or `own`, the container's first
/// process, with changes.
pub(super) fn of_exec(own: &[u8], call: &Call) -> Result<Vec<u8>, Failure> {
    let parse = |text: &[u8]| {
        serde_json::from_slice::<Value>(text).map_err(|error| refuse(error.to_string()))
    };
    let mut process = match call.values(&["process", "p"]).last() {
        Some(file) => {
            let text = std::fs::read(file);
            let file = file.display();
            parse(&text.map_err(|error| refuse(format!("cannot read {file}: {error}")))?)?
        }
        None => {
            let mut process = parse(own)?;
            process["terminal"] = call.has(&["tty", "t"]).into();
            process["args"] = words(call.rest.iter()).into();
            process
        }
    };
    if let Some(cwd) = call.values(&["cwd"]).last() {
        process["cwd"] = cwd.to_string_lossy().into();
    }
    let mut environment = process["env"].as_array().cloned().unwrap_or_default();
    environment.extend(
        words(call.values(&["env", "e"]))
            .into_iter()
            .map(Value::from),
    );
    process["env"] = environment.into();
    set_identity(&mut process, call)?;
    if call.has(&["no-new-privs"]) {
        process["noNewPrivileges"] = true.into();
    }
    if process["terminal"] == true {
        return Err(refuse("terminals are not supported".to_owned()));
    }
    if process["args"].as_array().is_none_or(Vec::is_empty) {
        return Err(refuse("none is named".to_owned()));
    }
    Ok(process.to_string().into_bytes())
}

fn refuse(why: String) -> Failure {
    let message = format!("cannot run a program in the virtual machine: {why}");
    Failure::new(Exit::Unsupported, message)
        .help("name the program and its arguments after the ID, or a file with --process")
}

/// Sets the user, groups and capabilities of the command line.
fn set_identity(process: &mut Value, call: &Call) -> Result<(), Failure> {
    if let Some(user) = call.values(&["user", "u"]).last() {
        let user = user.to_string_lossy();
        let (uid, gid) = user.split_once(':').unwrap_or((&user, "0"));
        let ids = uid.parse::<u32>().ok().zip(gid.parse::<u32>().ok());
        let (uid, gid) = ids.ok_or_else(|| refuse(format!("--user {user} is not UID[:GID]")))?;
        process["user"] = json!({"uid": uid, "gid": gid});
    }
    for gid in call.values(&["additional-gids", "g"]) {
        let gid = gid.to_string_lossy();
        let number = gid.parse::<u32>();
        let number = number.map_err(|error| refuse(format!("--additional-gids {gid}: {error}")))?;
        append(&mut process["user"]["additionalGids"], number.into());
    }
    for capability in words(call.values(&["cap", "c"])) {
        if abi::capability::from_name(&capability).is_none() {
            return Err(refuse(format!("no such capability: {capability}")));
        }
        for set in ["bounding", "effective", "permitted"] {
            append(&mut process["capabilities"][set], capability.clone().into());
        }
    }
    Ok(())
}

/// Appends to a list, which need not exist.
fn append(list: &mut Value, value: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(value),
        None => *list = vec![value].into(),
    }
}

fn words<'a, S: AsRef<std::ffi::OsStr> + 'a + ?Sized>(
    given: impl Iterator<Item = &'a S>,
) -> Vec<String> {
    given
        .map(|word| word.as_ref().to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use runtime::CommandLine;

    use super::*;

    fn exec(line: &str) -> Result<Value, Failure> {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        let call = CommandLine::parse(&words).unwrap().call.unwrap();
        let own = br#"{"args":["sh"],"env":["A=1"],"cwd":"/","user":{"uid":5,"gid":6}}"#;
        of_exec(own, &call).map(|text| serde_json::from_slice(&text).unwrap())
    }

    #[test]
    fn options_change_what_the_first_process_has() {
        let plain = exec("exec abc ls -l").unwrap();
        assert_eq!(plain["args"], json!(["ls", "-l"]));
        assert_eq!(
            (&plain["cwd"], &plain["user"]["uid"]),
            (&json!("/"), &json!(5))
        );
        let changed = exec("exec --cwd /tmp -e B=2 -u 7:8 abc id").unwrap();
        assert_eq!(changed["env"], json!(["A=1", "B=2"]));
        assert_eq!(changed["user"], json!({"uid": 7, "gid": 8}));
        assert_eq!(changed["cwd"], "/tmp");
        let more = exec("exec -g 8 -g 9 --cap CAP_CHOWN --no-new-privs abc id").unwrap();
        assert_eq!(more["user"]["additionalGids"], json!([8, 9]));
        for set in ["bounding", "effective", "permitted"] {
            assert_eq!(more["capabilities"][set], json!(["CAP_CHOWN"]));
        }
        assert_eq!(more["noNewPrivileges"], true);
    }

    #[test]
    fn what_is_not_carried_out_is_refused() {
        for line in [
            "exec abc",
            "exec -t abc sh",
            "exec --user me abc sh",
            "exec --cap CAP_ALL abc sh",
            "exec -g wheel abc sh",
            "exec --process /no/such abc",
        ] {
            let failure = exec(line).unwrap_err();
            assert_eq!(failure.exit, Exit::Unsupported, "{line}");
        }
    }

    #[test]
    fn the_time_goes_with_the_process() {
        let (time, process) = started(&start(b"{\"cwd\":\"/\"}")).unwrap();
        assert!(time > 1_700_000_000_000_000_000);
        assert_eq!(process["cwd"], "/");
        assert_eq!(started(b"short"), None);
    }
}
