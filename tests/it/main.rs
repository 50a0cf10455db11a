//! weir from the outside: every test here drives a real `weir` binary, most of them over the PostgreSQL wire protocol.
//!
//! | module | holds |
//! | --- | --- |
//! | [`run`] | the run's seed and length, and how a test says that it can't run here |
//! | [`rows`] | results, and comparing them as multisets |
//! | [`server`] | a `weir serve` process: started, killed, started again with other settings |
//! | [`views`] | which views a file's statements make, and the answer that each must show |
//! | [`resumed_sink`] | sinks that an error stopped go on from where they stood |
//! | [`resumed_tables`] | the same for what reads stored tables: rows that came and went meanwhile are not evaluated |
//! | [`recover`] | a group whose newest checkpoint is damaged goes on from an older one |
//! | [`reference`] | a real PostgreSQL of the test's own |
//! | [`slt`] | the `.slt` files, straight, through kills, and through restarts at another parallelism |
//! | [`random`] | generated tables, updates, queries and barriers |
//! | [`postgres`] | the same statements on weir and on PostgreSQL |
//! | [`crash`] | kill -9 under concurrent writers, at random moments and at aimed ones |
//! | [`alter`] | views that take another query while others read them |
//! | [`alter_sink`] | sinks that take another query |
//! | [`backfill`] | views made while their inputs change |
//! | [`cancel`] | what cancel requests end, and how |
//! | [`concurrent_ddl`] | sessions that change the catalog at a time |
//! | [`consistency`] | money is never made or lost, whenever one looks |
//! | [`embedded`] | an engine in the test's own process, over files that can be held up |
//! | [`groups`] | a group's checkpoints, restarts and restores, and what readers see of them |
//! | [`poison`] | a row on which an expression fails |
//! | [`corruption`] | a flipped byte in what is on disk |
//! | [`compat`] | data folders that earlier versions wrote |
//! | [`files`] | files in and out, through kills |
//! | [`full_disk`] | a disk without room |
//! | [`power_loss`] | a disk that forgets what was not fsynced, under the engine in this process |
//! | [`older_checkpoint`] | going on from a checkpoint that is not the newest |
//! | [`psql`] | what a user of psql sees |
//! | [`protocol`] | prepared statements, parameters, binary values, cancelling |
//! | [`query_memory`] | batch queries far over the memory that they may hold |
//! | [`conversation`] | the extended protocol message by message, beside PostgreSQL's |
//! | [`error_places`] | where errors say that they are, beside PostgreSQL's |
//! | [`portals`] | Execute messages: rows as they come, all or some at a time |
//! | [`wire`] | pipelines, bad messages, bad text, byte by byte |
//! | [`robustness`] | statements that are deep, endless or many |
//! | [`scripts`] | `weir run` and `weir sql` |
//! | [`shutdown`] | what clients are told and what becomes of statements when the server stops, and when it starts |
//! | [`stored_state`] | the state of jobs and savepoints as rows |
//! | [`surface`] | what a user types and sees: refusals, errors, system views, EXPLAIN |
//! | [`s3`] | checkpoints and files in a real S3 server, through kills and what a network does |
//! | [`planted`] | the tests above, with an engine that does one thing wrong |

mod alter;
mod alter_sink;
mod backfill;
mod cancel;
mod compat;
mod concurrent_ddl;
mod consistency;
mod conversation;
mod corruption;
mod crash;
mod embedded;
mod error_places;
mod file_reading;
mod files;
mod full_disk;
mod groups;
mod named;
mod nested;
mod older_checkpoint;
mod planted;
mod poison;
mod portals;
mod postgres;
mod power_loss;
mod protocol;
mod psql;
mod query_memory;
mod random;
mod recover;
mod reference;
mod resumed_sink;
mod resumed_tables;
mod robustness;
mod rows;
mod run;
mod s3;
mod savepoints;
mod scripts;
mod server;
mod shutdown;
mod slt;
mod stored_state;
mod surface;
mod views;
mod wire;
