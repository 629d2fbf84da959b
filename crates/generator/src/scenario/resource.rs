//! Resources of calls: sockets, descriptors, processes.

use std::fs::{self, File, OpenOptions};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;

use super::chain;
use super::values::Values;
use super::{Process, Resource, ResourceKind};

/// Resources that exist until this is dropped.
#[derive(Default)]
pub(super) struct Resources {
    descriptors: Vec<OwnedFd>,
    processes: Vec<Child>,
    /// Files and folders to remove, the last first.
    made: Vec<PathBuf>,
}

impl Resources {
    /// Makes a resource and stores its properties.
    pub(super) fn make(
        &mut self,
        resource: &Resource,
        values: &mut Values,
        folder: &Path,
    ) -> Result<(), String> {
        let name = &resource.name;
        let found = match &resource.kind {
            ResourceKind::ClientServer { l4_proto, address } => {
                self.connection(l4_proto, address, folder)
            }
            ResourceKind::Fd {
                subtype,
                file_path,
                dir_path,
                file_name,
            } => {
                let path = file_path
                    .as_ref()
                    .or(dir_path.as_ref())
                    .or(file_name.as_ref());
                self.descriptor(subtype, path.map_or("", String::as_str))
            }
            ResourceKind::Process {
                exe_path,
                args,
                exe,
                proc_name,
                env,
            } => {
                let process = Process {
                    exe_path: exe_path.clone(),
                    args: args.clone(),
                    exe: exe.clone(),
                    name: proc_name.clone(),
                    env: env.clone(),
                    ..Process::default()
                };
                self.process(&process, folder)
            }
        };
        for (path, number) in found.map_err(|why| format!("resource {name}: {why}"))? {
            values.put(format!("{name}.{path}"), number);
        }
        Ok(())
    }

    fn hold(&mut self, fd: impl Into<OwnedFd>) -> i64 {
        let fd = fd.into();
        let number = fd.as_raw_fd();
        self.descriptors.push(fd);
        number.into()
    }

    fn connection(&mut self, protocol: &str, address: &str, folder: &Path) -> Found {
        let describe_error =
            |error: std::io::Error| format!("cannot connect to {address}: {error}");
        let (client, server): (OwnedFd, OwnedFd) = match protocol {
            "tcp4" | "tcp6" => {
                let listener = TcpListener::bind(address).map_err(describe_error)?;
                let client = TcpStream::connect(address).map_err(describe_error)?;
                let (server, _) = listener.accept().map_err(describe_error)?;
                // The listener remains, for calls that connect.
                self.hold(listener);
                (client.into(), server.into())
            }
            "udp4" | "udp6" => {
                let server = UdpSocket::bind(address).map_err(describe_error)?;
                let any = if protocol == "udp4" {
                    "0.0.0.0:0"
                } else {
                    "[::]:0"
                };
                (
                    UdpSocket::bind(any).map_err(describe_error)?.into(),
                    server.into(),
                )
            }
            "unix" => {
                let path = folder.join(format!("socket-{}", self.descriptors.len()));
                let listener = UnixListener::bind(&path).map_err(describe_error)?;
                let client = UnixStream::connect(&path).map_err(describe_error)?;
                let (server, _) = listener.accept().map_err(describe_error)?;
                self.made.push(path);
                (client.into(), server.into())
            }
            other => return Err(format!("no such protocol: {other}")),
        };
        let (client, server) = (self.hold(client), self.hold(server));
        Ok(vec![("client.fd", client), ("server.fd", server)])
    }

    fn descriptor(&mut self, subtype: &str, path: &str) -> Found {
        let describe_error = |error: std::io::Error| {
            format!("cannot make a descriptor of {subtype} {path}: {error}")
        };
        let plain = |error: rustix::io::Errno| describe_error(error.into());
        use rustix::event::{EventfdFlags, epoll, eventfd};
        use rustix::fs::inotify;
        let fd: OwnedFd = match subtype {
            "file" => self.file(Path::new(path)).map_err(describe_error)?.into(),
            "directory" => {
                self.folders(Path::new(path)).map_err(describe_error)?;
                File::open(path).map_err(describe_error)?.into()
            }
            "pipe" => {
                let (read, write) = rustix::pipe::pipe().map_err(plain)?;
                let (read, write) = (self.hold(read), self.hold(write));
                return Ok(vec![("readFd", read), ("writeFd", write)]);
            }
            "event" => eventfd(0, EventfdFlags::empty()).map_err(plain)?,
            "signalfd" => {
                let mask = nix::sys::signal::SigSet::empty();
                nix::sys::signalfd::SignalFd::new(&mask)
                    .map_err(|error| describe_error(error.into()))?
                    .into()
            }
            "eventpoll" => epoll::create(epoll::CreateFlags::empty()).map_err(plain)?,
            "inotify" => inotify::init(inotify::CreateFlags::empty()).map_err(plain)?,
            "memfd" => {
                let name = std::ffi::CString::new(path).map_err(|error| error.to_string())?;
                sys::fd::memory_file(&name, 0).map_err(|error| describe_error(error.into()))?
            }
            other => return Err(format!("no such descriptor: {other}")),
        };
        let fd = self.hold(fd);
        Ok(vec![("fd", fd)])
    }

    /// Opens a file. A missing file is made for the duration of the test.
    fn file(&mut self, path: &Path) -> std::io::Result<File> {
        let mut both = OpenOptions::new();
        both.read(true).write(true);
        if path.exists() {
            return both.open(path).or_else(|_read_only| File::open(path));
        }
        if let Some(folder) = path.parent() {
            self.folders(folder)?;
        }
        let file = both.create_new(true).open(path)?;
        self.made.push(path.to_path_buf());
        Ok(file)
    }

    /// Makes the missing folders of a path.
    pub(super) fn folders(&mut self, path: &Path) -> std::io::Result<()> {
        let mut missing: Vec<&Path> = path
            .ancestors()
            .take_while(|folder| !folder.exists())
            .collect();
        while let Some(folder) = missing.pop() {
            fs::create_dir(folder)?;
            self.made.push(folder.to_path_buf());
        }
        Ok(())
    }

    fn process(&mut self, process: &Process, folder: &Path) -> Found {
        let child = chain::idle(process, self, folder)?;
        let pid = i64::from(child.id());
        self.processes.push(child);
        Ok(vec![("pid", pid)])
    }

    /// Registers a file or folder for removal that another part of the test has made.
    pub(super) fn remove_later(&mut self, path: PathBuf) {
        self.made.push(path);
    }
}

type Found = Result<Vec<(&'static str, i64)>, String>;

impl Drop for Resources {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // A call may have ended the process.
            let _ = process.kill();
            let _ = process.wait();
        }
        for path in self.made.drain(..).rev() {
            // A folder that holds something else is kept.
            let _ = if path.is_dir() {
                fs::remove_dir(&path)
            } else {
                fs::remove_file(&path)
            };
        }
    }
}
