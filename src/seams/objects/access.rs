//! How a bucket is spoken to, where that is not as `AWS_*` variables say.

use std::fmt;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// What a table says of its object store; what it leaves out is as the `AWS_*` variables have it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// Given with [`Access::secret_access_key`], or not at all.
    pub access_key_id: Option<String>,
    pub secret_access_key: Option<String>,
    pub session_token: Option<String>,
    /// Whether an endpoint without encryption may be used.
    pub allow_http: Option<bool>,
    /// How long a call may take, with everything that is tried again in it.
    pub timeout: Option<Duration>,
}

/// Secrets are not printed, wherever one of these ends up.
impl fmt::Debug for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = if self.access_key_id.is_some() { "its own" } else { "the environment's" };
        formatter
            .debug_struct("Access")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("credentials", &own)
            .field("allow_http", &self.allow_http)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl Access {
    /// Adds the environment's word, and then this one's.
    pub(super) fn apply(&self, mut builder: AmazonS3Builder) -> AmazonS3Builder {
        for (name, value) in std::env::vars_os() {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            let key = name.starts_with("AWS_").then(|| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().ok()).flatten();
            // Keys of one's own don't go with somebody else's token.
            if let Some(key) = key.filter(|key| self.access_key_id.is_none() || !is_credential(key)) {
                builder = builder.with_config(key, value);
            }
        }
        let given = [
            (AmazonS3ConfigKey::Endpoint, &self.endpoint),
            (AmazonS3ConfigKey::Region, &self.region),
            (AmazonS3ConfigKey::AccessKeyId, &self.access_key_id),
            (AmazonS3ConfigKey::SecretAccessKey, &self.secret_access_key),
            (AmazonS3ConfigKey::Token, &self.session_token),
        ];
        for (key, value) in given {
            if let Some(value) = value {
                builder = builder.with_config(key, value);
            }
        }
        match self.allow_http {
            Some(allow) => builder.with_allow_http(allow),
            None => builder,
        }
    }
}

fn is_credential(key: &AmazonS3ConfigKey) -> bool {
    matches!(key, AmazonS3ConfigKey::AccessKeyId | AmazonS3ConfigKey::SecretAccessKey | AmazonS3ConfigKey::Token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let access = Access {
            access_key_id: Some("AKIAEXAMPLE".into()),
            secret_access_key: Some("hush".into()),
            session_token: Some("token".into()),
            ..Access::default()
        };
        let text = format!("{access:?}");
        assert!(!["AKIAEXAMPLE", "hush", "\"token\""].iter().any(|secret| text.contains(secret)), "{text}");
    }
}
