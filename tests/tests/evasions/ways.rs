//! Ten ways to do the same under another look. Each is made from what a row of the table does, and not written for
//! one rule.

/// What a row of the table does. Paths are absolute or begin with `%W`, the work folder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Reads a file.
    Read(&'static str),
    /// Creates or overwrites a file.
    Write(&'static str),
    /// Removes a file.
    Remove(&'static str),
    /// Moves a file to a name.
    Move(&'static str, &'static str),
    /// Makes a symbolic link: its target, its name.
    Symlink(&'static str, &'static str),
    /// Makes a hard link: the file, its new name.
    Link(&'static str, &'static str),
    /// Changes the mode of a file, in octal digits.
    Mode(&'static str, &'static str),
    /// Starts the program at a path with arguments.
    Start(&'static str, &'static [&'static str]),
    /// Runs statements of Perl, which make the system calls. No single quotes, and parentheses in pairs.
    Call(&'static str),
}

/// A way to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// As an administrator would type it. This is no evasion: the rule must fire.
    Plain,
    /// By a copy of the program under another name.
    Renamed,
    /// By the applet of busybox.
    Busybox,
    /// By a line of an interpreter; a program gets another name as its argument zero.
    Interpreter,
    /// Through a symbolic link to the folder or the program.
    SymbolicLink,
    /// By a path relative to the working directory.
    RelativePath,
    /// In another root that shows the same files.
    Chroot,
    /// By a newer or rarer system call than the usual one.
    OtherCall,
    /// By a path with needless slashes and dots.
    NoisyPath,
    /// In an environment that says nothing.
    Environment,
    /// By a copy of the program in memory.
    Memory,
}

impl Way {
    pub(crate) const ALL: [Self; 11] = [
        Self::Plain,
        Self::Renamed,
        Self::Busybox,
        Self::Interpreter,
        Self::SymbolicLink,
        Self::RelativePath,
        Self::Chroot,
        Self::OtherCall,
        Self::NoisyPath,
        Self::Environment,
        Self::Memory,
    ];

    /// Returns its name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Renamed => "renamed",
            Self::Busybox => "busybox",
            Self::Interpreter => "interpreter",
            Self::SymbolicLink => "symlink",
            Self::RelativePath => "relative",
            Self::Chroot => "chroot",
            Self::OtherCall => "other call",
            Self::NoisyPath => "noisy path",
            Self::Environment => "environment",
            Self::Memory => "memfd",
        }
    }
}

/// Folder of a row's chroot: the root again.
pub(crate) const OTHER_ROOT: &str = "/mnt";
/// Applets that do what the programs of the same names do.
const APPLETS: [&str; 11] = [
    "cat", "chmod", "cp", "dd", "find", "grep", "ln", "mount", "mv", "rm", "shred",
];

/// A command line.
#[derive(Clone, Debug)]
struct Command {
    /// Path of the program.
    program: String,
    arguments: Vec<String>,
}

impl Command {
    fn new<S: ToString>(program: &str, arguments: impl IntoIterator<Item = S>) -> Self {
        let arguments = arguments.into_iter().map(|word| word.to_string());
        Self {
            program: program.to_owned(),
            arguments: arguments.collect(),
        }
    }

    fn name(&self) -> &str {
        base(&self.program)
    }

    /// Writes it for a shell, with another word for the program.
    fn by(&self, program: &str) -> String {
        let arguments = self.arguments.iter().map(|word| format!(" '{word}'"));
        format!("{program}{}", arguments.collect::<String>())
    }

    /// Writes its arguments for Perl.
    fn list(&self) -> String {
        let words = self.arguments.iter().map(|word| format!(", q({word})"));
        words.collect()
    }
}

/// Writes a shell command that does `act` in a way, or returns none if the way has no meaning for it.
pub(crate) fn command(act: Operation, way: Way) -> Option<String> {
    let plain = started(act);
    Some(match way {
        Way::Plain => plain.by(&plain.program),
        Way::Renamed => format!("cp {} %W/notes\n{}", plain.program, plain.by("%W/notes")),
        Way::Busybox => {
            let applet = APPLETS.contains(&plain.name()) && plain.program.starts_with("/usr/bin/");
            applet.then(|| plain.by(&format!("busybox {}", plain.name())))?
        }
        Way::Interpreter => perl(&interpreted(act)?),
        Way::SymbolicLink => linked(act, &plain),
        Way::RelativePath => relative(act, &plain),
        Way::Chroot => plain.by(&format!("chroot {OTHER_ROOT} {}", plain.program)),
        Way::OtherCall => perl(&called(act, &plain)?),
        Way::NoisyPath => noisy(act, &plain),
        Way::Environment => plain.by(&format!("env -i LANG=C {}", plain.program)),
        Way::Memory => in_memory(&plain),
    })
}

/// Returns the usual command line of an act.
fn started(act: Operation) -> Command {
    match act {
        Operation::Read(path) => Command::new("/usr/bin/cat", [path]),
        Operation::Write(path) => Command::new("/usr/bin/cp", ["/etc/hosts", path]),
        Operation::Remove(path) => Command::new("/usr/bin/rm", [path]),
        Operation::Move(from, to) => Command::new("/usr/bin/mv", [from, to]),
        Operation::Symlink(to, path) => Command::new("/usr/bin/ln", ["-s", to, path]),
        Operation::Link(from, to) => Command::new("/usr/bin/ln", [from, to]),
        Operation::Mode(mode, path) => Command::new("/usr/bin/chmod", [mode, path]),
        Operation::Start(path, arguments) => Command::new(path, arguments),
        Operation::Call(statements) => Command::new("/usr/bin/perl", ["-e", statements]),
    }
}

/// Returns the file that an act is about.
fn object(act: Operation) -> Option<&'static str> {
    match act {
        Operation::Read(path)
        | Operation::Write(path)
        | Operation::Remove(path)
        | Operation::Move(_, path)
        | Operation::Symlink(_, path)
        | Operation::Link(path, _)
        | Operation::Mode(_, path) => Some(path),
        Operation::Start(..) | Operation::Call(_) => None,
    }
}

/// Returns the command line with another path for the file that the act is about.
fn about(act: Operation, plain: &Command, path: &str) -> Command {
    let old = object(act);
    let replaced = |word: &String| match Some(word.as_str()) == old {
        true => path.to_owned(),
        false => word.clone(),
    };
    Command::new(&plain.program, plain.arguments.iter().map(replaced))
}

fn interpreted(act: Operation) -> Option<String> {
    Some(match act {
        Operation::Read(path) => format!("open my $f, q(<), q({path}) or die; my $line = <$f>"),
        Operation::Write(path) => format!("open my $f, q(>), q({path}) or die; print $f q(x)"),
        Operation::Remove(path) => format!("unlink q({path}) or die"),
        Operation::Move(from, to) => format!("rename q({from}), q({to}) or die"),
        Operation::Symlink(to, path) => format!("symlink q({to}), q({path}) or die"),
        Operation::Link(from, to) => format!("link q({from}), q({to}) or die"),
        Operation::Mode(mode, path) => format!("chmod 0{mode}, q({path}) or die"),
        Operation::Start(path, _) => {
            let list = started(act).list();
            format!("exec {{q({path})}} q(x){list} or die")
        }
        Operation::Call(_) => return None,
    })
}

/// Writes calls of numbers of x86-64 that name the file by its folder's descriptor.
fn called(act: Operation, plain: &Command) -> Option<String> {
    if let Operation::Start(path, _) = act {
        // execveat of the program's descriptor, with AT_EMPTY_PATH. It stays open, because a script is read by it.
        let (name, list) = (plain.name(), plain.list());
        return Some(format!(
            "$^F = 99; sysopen(F, q({path}), 0) or die; my @words = map {{ qq($_\\0) }} (q({name}){list});
            my $words = pack(q(p*), @words) . pack(q(Q), 0); my $none = qq(\\0);
            syscall(322, fileno(F), $none, $words, 0, 0x1000); die"
        ));
    }
    let path = object(act)?;
    let (folder, name) = (folder(path), base(path));
    let open = format!("sysopen(D, q({folder}), 0200000) or die; my $name = q({name});");
    let how = "$how, 24) >= 0 or die";
    let call = match act {
        Operation::Read(_) => {
            format!("my $how = pack(q(QQQ), 0, 0, 0); syscall(437, fileno(D), $name, {how}")
        }
        Operation::Write(_) => {
            format!("my $how = pack(q(QQQ), 577, 420, 0); syscall(437, fileno(D), $name, {how}")
        }
        Operation::Remove(_) => "syscall(263, fileno(D), $name, 0) == 0 or die".to_owned(),
        Operation::Move(from, _) => format!(
            "my $from = q({from}); syscall(316, -100, $from, fileno(D), $name, 0) == 0 or die"
        ),
        Operation::Symlink(to, _) => {
            format!("my $to = q({to}); syscall(266, $to, fileno(D), $name) == 0 or die")
        }
        Operation::Link(_, to) => {
            format!("my $to = q({to}); syscall(265, fileno(D), $name, -100, $to, 0) == 0 or die")
        }
        Operation::Mode(mode, _) => format!(
            "my $at = qq(/proc/self/fd/) . fileno(D) . qq(/$name); sysopen(F, $at, 0) or die;
            syscall(91, fileno(F), 0{mode}) == 0 or die"
        ),
        Operation::Start(..) | Operation::Call(_) => return None,
    };
    Some(format!("{open} {call}"))
}

fn linked(act: Operation, plain: &Command) -> String {
    match object(act) {
        Some(path) => {
            let moved = about(act, plain, &format!("%W/other/{}", base(path)));
            format!(
                "ln -s {} %W/other\n{}",
                folder(path),
                moved.by(&moved.program)
            )
        }
        None => format!("ln -s {} %W/notes\n{}", plain.program, plain.by("%W/notes")),
    }
}

fn relative(act: Operation, plain: &Command) -> String {
    match object(act) {
        Some(path) => {
            let moved = about(act, plain, &format!("./{}", base(path)));
            format!("(cd {}; {})", folder(path), moved.by(&moved.program))
        }
        None => {
            let program = format!("./{}", plain.name());
            format!("(cd {}; {})", folder(&plain.program), plain.by(&program))
        }
    }
}

fn noisy(act: Operation, plain: &Command) -> String {
    let noise = |path: &str| format!("/{}/.//./{}", folder(path), base(path));
    match object(act) {
        Some(path) => {
            let moved = about(act, plain, &noise(path));
            moved.by(&moved.program)
        }
        None => plain.by(&noise(&plain.program)),
    }
}

fn in_memory(plain: &Command) -> String {
    let (program, name, list) = (&plain.program, plain.name(), plain.list());
    perl(&format!(
        "$^F = 99; my $n = q(m); my $fd = syscall(319, $n, 0); system(qq(cat {program} >&$fd));
        exec {{qq(/proc/self/fd/$fd)}} q({name}){list} or die"
    ))
}

/// Writes a command of one line.
fn perl(statements: &str) -> String {
    let lines = statements.lines().map(str::trim).collect::<Vec<_>>();
    format!("perl -e '{}'", lines.join(" "))
}

fn folder(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((folder, _)) => folder,
    }
}

fn base(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, base)| base)
}
