//! What a network does: a TCP proxy between weir and the S3 server.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What becomes of connections, those that are there and new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// They are passed on.
    Fair,
    /// So many bytes a second go through each, either way.
    Slow(u64),
    /// A request gets no answer.
    Silent,
    /// A request is answered with 503.
    Unavailable,
    /// A request is answered as S3 does where there is no such bucket.
    NoBucket,
    /// Each is cut after so many bytes from the client.
    Torn(u64),
    /// They are closed as soon as they come.
    Refused,
    /// Each is cut at a request that would complete an upload; all others are passed on.
    NoCompletion,
}

/// The proxy; it ends with the test.
#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    weather: Arc<Mutex<(Weather, u64)>>,
    /// How many connections met other weather than fair.
    disturbed: Arc<AtomicU64>,
}

/// How long a piece of either direction is waited for before the weather is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a connection to the server outlives the client's. What the server has received it carries out, as S3 does; this one gives up in the middle of it where
/// its connection goes.
const LINGER: Duration = Duration::from_secs(10);
const ANSWER_503: &[u8] = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const ANSWER_404: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nContent-Length: 94\r\nConnection: close\r\n\r\n\
<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>";

impl Proxy {
    /// A proxy before `target`, in fair weather.
    pub fn before(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy {
            address: listener.local_addr().expect("an address"),
            weather: Arc::new(Mutex::new((Weather::Fair, 0))),
            disturbed: Arc::default(),
        };
        let own = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let proxy = own.clone();
                std::thread::spawn(move || proxy.serve(client, target));
            }
        });
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather; connections that are there are cut.
    pub fn set(&self, weather: Weather) {
        let mut now = self.weather.lock();
        *now = (weather, now.1 + 1);
    }

    /// How many connections met other weather than fair.
    pub fn disturbed(&self) -> u64 {
        self.disturbed.load(Ordering::SeqCst)
    }

    fn serve(&self, mut client: TcpStream, target: SocketAddr) {
        let (weather, since) = *self.weather.lock();
        if weather != Weather::Fair {
            self.disturbed.fetch_add(1, Ordering::SeqCst);
        }
        let _ = client.set_read_timeout(Some(LOOK));
        match weather {
            Weather::Refused => {}
            Weather::Silent => while self.is(since) && read(&mut client).is_ok() {},
            Weather::Unavailable | Weather::NoBucket => {
                let answer = if weather == Weather::NoBucket { ANSWER_404 } else { ANSWER_503 };
                while self.is(since) {
                    match read(&mut client) {
                        Ok(Some(_)) => {
                            let _ = client.write_all(answer);
                            let _ = client.shutdown(Shutdown::Write);
                            // What still comes is read, so that the answer arrives.
                            while self.is(since) && read(&mut client).is_ok() {}
                            return;
                        }
                        Ok(None) => {}
                        Err(()) => return,
                    }
                }
            }
            Weather::Fair | Weather::Slow(_) | Weather::Torn(_) | Weather::NoCompletion => {
                let Ok(server) = TcpStream::connect(target) else { return };
                let _ = server.set_read_timeout(Some(LOOK));
                let (Ok(client_again), Ok(server_again)) = (client.try_clone(), server.try_clone()) else { return };
                let ended = Arc::new(AtomicBool::new(false));
                let (proxy, told) = (self.clone(), ended.clone());
                std::thread::spawn(move || {
                    let mut server = server_again;
                    proxy.pass(&mut server, client_again, &told, since, None);
                    let until = Instant::now() + LINGER;
                    while Instant::now() < until && read(&mut server).is_ok() {}
                    let _ = server.shutdown(Shutdown::Both);
                });
                let most = match weather {
                    Weather::Torn(most) => Some(most),
                    _ => None,
                };
                self.pass(&mut client, server, &ended, since, most);
                let _ = client.shutdown(Shutdown::Both);
            }
        }
    }

    fn is(&self, since: u64) -> bool {
        self.weather.lock().1 == since
    }

    /// Passes on what comes, at most `most` bytes of it, until the weather changes or the other direction has `ended`, and says so.
    fn pass(&self, from: &mut TcpStream, mut to: TcpStream, ended: &AtomicBool, since: u64, most: Option<u64>) {
        let mut passed = 0;
        while self.is(since) && !ended.load(Ordering::SeqCst) {
            let bytes = match read(from) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(()) => break,
            };
            if let Weather::Slow(bytes_per_s) = self.weather.lock().0 {
                std::thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / bytes_per_s as f64));
            }
            if self.weather.lock().0 == Weather::NoCompletion && completes_an_upload(&bytes) {
                break;
            }
            let left = most.map_or(bytes.len(), |most| (most - passed).min(bytes.len() as u64) as usize);
            if to.write_all(&bytes[..left]).is_err() || left < bytes.len() {
                break;
            }
            passed += left as u64;
        }
        ended.store(true, Ordering::SeqCst);
    }
}

/// Whether a request begins so that completes an upload. One that begins an upload names none yet.
fn completes_an_upload(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.starts_with(b"POST ") && String::from_utf8_lossy(line).contains("uploadId=")
}

/// What has come; `None` where nothing has within [`LOOK`], an error at the end.
fn read(from: &mut TcpStream) -> Result<Option<Vec<u8>>, ()> {
    let mut buffer = vec![0; 16 << 10];
    match from.read(&mut buffer) {
        Ok(0) => Err(()),
        Ok(read) => {
            buffer.truncate(read);
            Ok(Some(buffer))
        }
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => Ok(None),
        Err(_) => Err(()),
    }
}
