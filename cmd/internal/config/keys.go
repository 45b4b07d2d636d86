package config

import (
	"flag"
	"fmt"
	"slices"
)

// A Key describes one value that the user can set. Set, Each, the decoder and the
// suggestions for misspelled keys use it, and so do the flags, the mount options
// and docs/configuration.md. To add a key, add it to keys.
type Key struct {
	Table, Name string // [Table] Name = …; Table is "" for a key above all tables
	Type        Type
	Unit        string // such as "files"; "" if there is none or the value contains it
	Bounds      string // the values that are accepted; "" if there is no bound
	Min, Max    int64  // the bounds of an integer; Max is 0 if there is none
	Default     string // the default in words; "" if Default returns it
	Meaning     string // for the documentation; ends in a full stop

	Argument string // the command-line argument that sets the value; "" if none does
	Flag     string // the flag without "--"; "" if there is none
	Usage    string // the help of Flag, with the placeholder of its value in backquotes
	Option   string // the option for -o and /etc/fstab; "" if there is none

	Reloadable bool // a mount takes a new value over while it is used

	remedy string // a sentence that describes a valid value, printed with errors

	// field returns the value in c. For a key of the table tier, it returns the
	// value in t.
	field func(c *Config, t *Tier) flag.Value
}

// A Type is the type of a value.
type Type string

// The types. integerType and booleanType are integers and booleans of TOML. All
// others are strings.
const (
	integerType  Type = "integer"
	booleanType  Type = "boolean"
	pathType     Type = "path"
	urlType      Type = "URL"
	sizeType     Type = "size"
	quotaType    Type = "size or percentage"
	durationType Type = "duration"
	addressType  Type = "host:port"
	choiceType   Type = "choice" // one of the words in Key.Bounds
	nameType     Type = "name"
	rosterType   Type = "text or list"
)

// syntax describes how a value of the type is written in TOML.
func (t Type) syntax() string {
	switch t {
	case integerType:
		return "a number without quotes"
	case booleanType:
		return "true or false without quotes"
	case rosterType:
		return "text in double quotes, or a list of such texts"
	default:
		return "text in double quotes"
	}
}

// expandsVariables reports whether ${NAME} in a value of the file is replaced by
// the environment variable NAME.
func (t Type) expandsVariables() bool { return t == pathType || t == urlType || t == rosterType }

// IsBoolean reports whether the value is true or false.
func (k Key) IsBoolean() bool { return k.Type == booleanType }

// String returns the key as "table.name", or as "name" if it is in no table.
func (k Key) String() string {
	if k.Table == "" {
		return k.Name
	}
	return k.Table + "." + k.Name
}

// Keys returns all keys in the order of tiering.toml.
func Keys() []Key { return slices.Clone(keys) }

const tierTable = "tier" // the only table that may occur several times

const (
	sizeBounds   = "below 8 EiB"
	oneSource    = "none; exactly one of `source.path` and `source.url` is required"
	required     = "none; required"
	tierArgument = "--tier NAME:PATH:QUOTA"
)

var keys = []Key{
	{
		Name: "profile", Type: choiceType, Bounds: profileBounds(),
		Flag: "profile", Option: "profile", Usage: "replace some defaults by those of profile `NAME`; milkweed config profiles lists them",
		Meaning: "The profile, which replaces the defaults of a few keys.",
		remedy:  ProfilesRemedy(),
		field:   func(c *Config, _ *Tier) flag.Value { return (*profileValue)(&c.Profile) },
	},

	{
		Table: "source", Name: "path", Type: pathType, Default: oneSource, Argument: "SOURCE",
		Meaning: "The directory that holds the complete dataset; Milkweed only reads it.",
		remedy:  `A source is a directory, such as path = "/lustre/imagenet", or a bucket, such as url = "s3://bucket/prefix".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*pathValue)(&c.Source.Path) },
	},
	{
		Table: "source", Name: "url", Type: urlType, Default: oneSource, Argument: "SOURCE",
		Bounds:  "scheme `s3`, `gs` or `azblob`; no credentials",
		Meaning: "The bucket and prefix that hold the complete dataset, with options after a `?`.",
		remedy:  `A bucket has a URL, such as url = "s3://bucket/prefix?region=eu-west-1". Supply credentials as for the vendor's own tools.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*urlValue)(&c.Source.URL) },
	},
	{
		Table: "source", Name: "generation", Type: nameType, Default: "`\"\"`, the target of a link", Bounds: "no `/`",
		Flag: "generation", Option: "generation", Usage: "mount the generation `GEN`, in place of the one that the link SOURCE points to",
		Meaning: "The generation that is mounted: a directory beside the target of the source, if that is a link, or else in the source.",
		remedy:  `A generation is the name of a directory, such as generation = "v3"; "" is the target of the link.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*generationValue)(&c.Source.Generation) },
	},
	{
		Table: "source", Name: "manifest", Type: pathType, Default: "`\"\"`, no manifest", Bounds: "a file, or `dataset:` and the name of a file in the dataset",
		Flag: "manifest", Option: "manifest", Usage: "take names, sizes and hashes from the manifest `FILE`, or dataset:NAME",
		Meaning: "The list of all files with their sizes and hashes, which `milkweed manifest` writes. The mount then does not list the source, and keeps only copies that have the hash in the list. With generations it is a file in each of them.",
		remedy:  `A manifest is a file, such as manifest = "/home/me/imagenet.mtree" or, in the dataset, manifest = "dataset:manifest.mtree"; "" is none.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*manifestValue)(&c.Source.Manifest) },
	},
	{
		Table: "source", Name: "bandwidth", Reloadable: true, Type: sizeType, Unit: "bytes per second", Bounds: sizeBounds, Default: "`\"\"`, no limit",
		Option:  "source_bandwidth",
		Meaning: "The rate limit of this mount for reads from the source.",
		remedy:  `A bandwidth is a size, the bytes that may be read per second, such as "500MB"; "" is no limit.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*bandwidthValue)(&c.Source.Bandwidth) },
	},
	{
		Table: "source", Name: "operations", Reloadable: true, Type: integerType, Unit: "operations per second", Bounds: "0 or more", Default: "`0`, no limit",
		Option:  "source_operations",
		Meaning: "The rate limit of this mount for operations of all kinds on the source.",
		remedy:  `Use the number of operations that may start per second, such as 1000; 0 is no limit.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*operationsValue)(&c.Source.Operations) },
	},
	{
		Table: "source", Name: "clock_skew", Type: durationType, Bounds: "0 or more",
		Option: "clock_skew",
		Meaning: "By how much the clocks of the source and of this machine may differ. A file that changed more recently, " +
			"plus the granularity of the source's times, is not copied yet.",
		remedy: `A duration is a number with a unit, such as "5s"; "0s" if the clocks agree.`,
		field:  func(c *Config, _ *Tier) flag.Value { return (*durationValue)(&c.Source.ClockSkew) },
	},

	{
		Table: tierTable, Name: "name", Type: nameType, Default: required, Argument: tierArgument,
		Bounds:  fmt.Sprintf("1 to %d of `a-z`, `0-9`, `_` and `-`; unique", maxName),
		Meaning: "The name of the tier in commands and metrics.",
		remedy:  `A name has lower-case letters, digits, "_" and "-", such as name = "ssd".`,
		field:   func(_ *Config, t *Tier) flag.Value { return (*nameValue)(&t.Name) },
	},
	{
		Table: tierTable, Name: "path", Type: pathType, Default: required, Argument: tierArgument,
		Meaning: "The directory for the copies; Milkweed creates it if it is missing.",
		remedy:  `A tier is a directory, such as path = "/local/milkweed".`,
		field:   func(_ *Config, t *Tier) flag.Value { return (*pathValue)(&t.Path) },
	},
	{
		Table: tierTable, Name: "quota", Reloadable: true, Type: quotaType, Default: required, Argument: tierArgument,
		Bounds: "above 0; at most 100%; " + sizeBounds,
		Meaning: "The limit on the size of the copies; a percentage refers to the free space of the file system " +
			"plus the space that the copies occupy already.",
		remedy: `A quota is a size, such as "64GiB", or a percentage of the free space of the file system, such as "90%".`,
		field:  func(_ *Config, t *Tier) flag.Value { return (*quotaValue)(&t.Quota) },
	},

	{
		Table: "mount", Name: "point", Type: pathType, Default: required, Argument: "MOUNTPOINT",
		Meaning: "The empty directory on which the dataset is mounted.",
		remedy:  `A mount point is an empty directory, such as point = "/mnt/imagenet".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*pathValue)(&c.Mount.Point) },
	},
	{
		Table: "mount", Name: "mode", Type: choiceType, Bounds: "`auto`, `passthrough`, `stateless` or `cached`",
		Flag: "mode", Option: "mode", Usage: "read files in `MODE`: auto, passthrough, stateless or cached; the default is auto",
		Meaning: "How the kernel reads the content of files; `auto` chooses at mount.",
		remedy:  `Use "auto", "passthrough", "stateless" or "cached".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*modeValue)(&c.Mount.Mode) },
	},
	{
		Table: "mount", Name: "allow_other", Type: booleanType, Bounds: "`true` or `false`",
		Flag: "allow-other", Option: "allow_other", Usage: "let other users read the mount",
		Meaning: "Whether other users may read the mount; an ordinary user needs `user_allow_other` in `/etc/fuse.conf`.",
		remedy:  `Use true or false.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*boolValue)(&c.Mount.AllowOther) },
	},
	{
		Table: "mount", Name: "force_allow_other", Type: booleanType, Bounds: "`true` or `false`",
		Option:  "force_allow_other",
		Meaning: "Whether `allow_other` is accepted although the source has NFSv4 ACLs, which Milkweed does not apply, or denies root access.",
		remedy:  `Use true or false.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*boolValue)(&c.Mount.ForceAllowOther) },
	},
	{
		Table: "mount", Name: "xattrs", Type: booleanType, Bounds: "`true` or `false`",
		Option:  "xattrs",
		Meaning: "Whether extended attributes of the namespace `user.` are shown.",
		remedy:  `Use true or false.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*boolValue)(&c.Mount.Xattrs) },
	},
	{
		Table: "mount", Name: "attr_timeout", Type: durationType, Bounds: "0 or more",
		Flag: "attr-timeout", Option: "attr_timeout", Usage: "cache names and attributes for `DURATION`, such as 30s; the default is 1h",
		Meaning: "The TTL of cached names, sizes and modification times.",
		remedy:  `A duration is a number with a unit, such as "30s", "10m" or "1h".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*durationValue)(&c.Mount.AttrTimeout) },
	},
	{
		Table: "mount", Name: "consistency", Type: durationType, Bounds: "0, or 1s or more", Default: "`1m`; `0s` if the source is a bucket",
		Flag: "consistency", Option: "consistency",
		Usage: "see changes of the source within `DURATION`, by comparing what is in use with it in the background; the default is 1m, and 0s, which is off, for a bucket",
		Meaning: "The time within which a change at the source is seen, by comparing what is in use with it in the background, " +
			"at most 50 requests a second; it has no effect unless it is shorter than `mount.attr_timeout`, and `0s` turns it off.",
		remedy: `A consistency window is a number with a unit, such as "30s" or "1m"; "0s" turns the comparison off.`,
		field:  func(c *Config, _ *Tier) flag.Value { return (*windowValue)(&c.Mount.Consistency) },
	},
	{
		Table: "mount", Name: "metadata_snapshot", Type: pathType,
		Option:  "metadata_snapshot",
		Bounds:  "`auto`, `off`, or a file that is neither in the source nor below the mount point",
		Meaning: "Where names and attributes are saved for the next mount: with `auto` beside the copies, in a tier on a disk if there is one, unless `mount.consistency` is `0s`; `off` saves none.",
		remedy:  `Use "auto", "off", or a file such as metadata_snapshot = "/var/lib/milkweed/imagenet.snapshot".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*snapshotValue)(&c.Mount.MetadataSnapshot) },
	},
	{
		Table: "mount", Name: "plan", Type: pathType, Default: "`\"\"`, no plan",
		Option:  "plan",
		Bounds:  "not below the mount point",
		Meaning: "A list of files, with one path on each line, in the syntax that `milkweed plan --help` describes: the order in which the job will open files, which are copied in that order.",
		remedy:  `A plan is a file, such as plan = "/home/me/order.txt"; "" is none.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Mount.Plan) },
	},

	{
		Table: "placement", Name: "workers", Reloadable: true, Type: integerType, Unit: "files", Bounds: fmt.Sprintf("1 to %d", maxWorkers), Min: 1, Max: maxWorkers,
		Default: fmt.Sprintf("`%d`", defaultWorkers),
		Flag:    "workers", Option: "workers",
		Usage:   fmt.Sprintf("have at most `N` background requests for content in flight; the default is %d", defaultWorkers),
		Meaning: "The most background requests for content in flight. How many there are adapts to the source. Requests that a reader waits for are not counted.",
		remedy:  fmt.Sprintf("Use a number from 1 to %d.", maxWorkers),
		field:   func(c *Config, _ *Tier) flag.Value { return (*workersValue)(&c.Placement.Workers) },
	},
	{
		Table: "placement", Name: "window", Type: quotaType, Default: "`0`, no window", Bounds: "at most 100%; " + sizeBounds,
		Option: "window",
		Meaning: "The share of the fastest tier, in bytes or percent of its quota, for planned files that have no permanent room: " +
			"each is copied shortly before the job uses it and dropped after that.",
		remedy: `A window is a size, such as "8GiB", or a percentage of the quota of the fastest tier, such as "10%"; 0 is none.`,
		field:  func(c *Config, _ *Tier) flag.Value { return (*shareValue)(&c.Placement.Window) },
	},

	{
		Table: "peers", Name: "roster", Type: rosterType, Default: "`\"\"`, no peers",
		Flag: "peers", Option: "peers",
		Usage:   "share the tiers with the nodes of `ROSTER`: node1,node[2-4], file:PATH, slurm or dns:NAME",
		Bounds:  "names such as `node1` or `node1:7440`, `file:PATH`, `slurm` or `dns:NAME`; at most 65,536 nodes",
		Meaning: "The nodes that read the source once between them. It must be the same on all of them.",
		remedy:  `A roster is a list, such as "node1,node[2-4]", or "file:/etc/milkweed/nodes", "slurm" or "dns:NAME".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*rosterValue)(&c.Peers.Roster) },
	},
	{
		Table: "peers", Name: "name", Type: nameType, Default: "`\"\"`, the host name or an address of this machine, as far as the roster has it",
		Option:  "peers_name",
		Meaning: "The name of this node in the roster.",
		remedy:  `A name is one of the roster, such as "node1".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*nodeValue)(&c.Peers.Name) },
	},
	{
		Table: "peers", Name: "listen", Type: addressType, Bounds: "port 1 to 65535",
		Default: "`\"\"`, all addresses and the port of this node in the roster, which is 7440 unless the roster has another; without a secret, the address of this node in the roster",
		Option:  "peers_listen",
		Meaning: "The address at which this node serves others: files on this TCP port, and gossip on TCP and UDP of the next one. Without a secret it must be a loopback address. Its port is that of all nodes for which the roster has none.",
		remedy:  `An address is host:port, or :port for all addresses, such as ":7440".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*listenValue)(&c.Peers.Listen) },
	},
	{
		Table: "peers", Name: "secret_file", Type: pathType, Default: "`\"\"`, no secret",
		Flag: "peers-secret", Option: "peers_secret", Usage: "the `FILE` with the secret of the peers, which milkweed peers keygen prints",
		Bounds:  "readable by its owner only",
		Meaning: "The file with the secret that all nodes of the roster have; `milkweed peers keygen` makes one.",
		remedy:  `A secret is a file, such as secret_file = "/run/milkweed/job.key"; "" is none.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Peers.SecretFile) },
	},
	{
		Table: "peers", Name: "tls_cert", Type: pathType, Default: "`\"\"`, no TLS",
		Option:  "peers_tls_cert",
		Meaning: "The file with the certificate of this node, in PEM, for clients and servers and for the name or the address of the node in the roster. The nodes then encrypt what they send, and verify each other. Files that change are read again.",
		remedy:  `A certificate is a file, such as tls_cert = "/run/milkweed/tls.crt"; "" is none.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Peers.TLSCert) },
	},
	{
		Table: "peers", Name: "tls_key", Type: pathType, Default: "`\"\"`; required with `tls_cert`",
		Option:  "peers_tls_key",
		Bounds:  "readable by its owner only",
		Meaning: "The file with the key of `tls_cert`, in PEM.",
		remedy:  `A key is a file, such as tls_key = "/run/milkweed/tls.key"; "" is none.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Peers.TLSKey) },
	},
	{
		Table: "peers", Name: "tls_ca", Type: pathType, Default: "`\"\"`; required with `tls_cert`",
		Option:  "peers_tls_ca",
		Meaning: "The file with the certificates of the authorities that have signed those of all nodes, in PEM.",
		remedy:  `The authorities are a file, such as tls_ca = "/run/milkweed/ca.crt"; "" is none.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Peers.TLSCA) },
	},
	{
		Table: "peers", Name: "serve", Type: booleanType, Bounds: "`true` or `false`",
		Option:  "peers_serve",
		Meaning: "Whether this node serves others. A node that does not should not be in the roster, so that it owns no files.",
		remedy:  `Use true or false.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*boolValue)(&c.Peers.Serve) },
	},
	{
		Table: "peers", Name: "gossip", Type: booleanType, Bounds: "`true` or `false`",
		Option:  "peers_gossip",
		Meaning: "Whether the nodes tell each other which of them are up. Without it, a node notices when a request fails.",
		remedy:  `Use true or false.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*boolValue)(&c.Peers.Gossip) },
	},
	{
		Table: "peers", Name: "min", Type: integerType, Unit: "nodes", Default: "`0`; required for `dns:`", Bounds: fmt.Sprintf("0 to %d", maxNodes), Max: maxNodes,
		Option:  "peers_min",
		Meaning: "The number of addresses with which a roster of `dns:` is complete. Later ones are not added.",
		remedy:  fmt.Sprintf("Use the number of nodes of the job, at most %d.", maxNodes),
		field:   func(c *Config, _ *Tier) flag.Value { return (*nodesValue)(&c.Peers.Min) },
	},
	{
		Table: "peers", Name: "wait", Type: durationType, Bounds: "0 or more",
		Option:  "peers_wait",
		Meaning: "How long a mount waits until a roster of `dns:` is complete. After that it fails.",
		remedy:  `A duration is a number with a unit, such as "30s" or "5m".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*durationValue)(&c.Peers.Wait) },
	},
	{
		Table: "peers", Name: "group", Type: integerType, Unit: "nodes", Default: "`0`, one group", Bounds: fmt.Sprintf("0 to %d", maxNodes), Max: maxNodes,
		Option:  "peers_group",
		Meaning: "The largest number of nodes that form one cache. The roster is divided, in its order, into as few groups as possible, of nearly equal size. It must be the same on all nodes.",
		remedy:  fmt.Sprintf("Use a number of nodes, at most %d; 0 is one group.", maxNodes),
		field:   func(c *Config, _ *Tier) flag.Value { return (*nodesValue)(&c.Peers.Group) },
	},

	{
		Table: "scrub", Name: "interval", Reloadable: true, Type: durationType, Bounds: "0 or more", Default: "`0s`, no scheduled scrubs",
		Option:  "scrub_interval",
		Meaning: "The time between two scheduled scrubs, which compare all copies with their checksums.",
		remedy:  `A duration is a number with a unit, such as "168h"; "0s" turns scheduled scrubs off.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*durationValue)(&c.Scrub.Interval) },
	},
	{
		Table: "scrub", Name: "rate", Reloadable: true, Type: sizeType, Unit: "bytes per second", Bounds: sizeBounds,
		Option:  "scrub_rate",
		Meaning: "The rate limit of scheduled scrubs for reads from the tiers; `\"\"` is no limit.",
		remedy:  `A rate is a size, the bytes that may be read per second, such as "50MB"; "" is no limit.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*bandwidthValue)(&c.Scrub.Rate) },
	},

	{
		Table: "metrics", Name: "listen", Type: addressType, Bounds: "port 0 to 65535", Default: "`\"\"`, no metrics",
		Flag: "metrics-listen", Option: "metrics", Usage: "serve Prometheus metrics and a web page at `ADDRESS`, such as 127.0.0.1:9877",
		Meaning: "The address at which Prometheus reads the metrics, and a browser the page; without a host it is `127.0.0.1`.",
		remedy:  `An address is host:port, such as "127.0.0.1:9877"; "" turns the metrics off.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*addressValue)(&c.Metrics.Listen) },
	},

	{
		Table: "log", Name: "level", Reloadable: true, Type: choiceType, Bounds: "`debug`, `info`, `warn` or `error`",
		Flag: "log-level", Option: "log_level", Usage: "log messages of `LEVEL` and above: debug, info, warn or error; the default is info",
		Meaning: "The lowest severity of the messages that are logged.",
		remedy:  `Use "debug", "info", "warn" or "error".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*levelValue)(&c.Log.Level) },
	},
	{
		Table: "log", Name: "format", Type: choiceType, Bounds: "`text` or `json`",
		Flag: "log-format", Option: "log_format", Usage: "log in `FORMAT`: text or json; the default is text",
		Meaning: "The format of the log, with one message per line.",
		remedy:  `Use "text" or "json".`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*formatValue)(&c.Log.Format) },
	},
	{
		Table: "log", Name: "file", Type: pathType,
		Default: "`\"\"`, standard error in the foreground, and in the background a file in `$XDG_STATE_HOME/milkweed`",
		Flag:    "log-file", Option: "log_file", Usage: "log to `FILE`",
		Meaning: "The file to which the daemon logs.",
		remedy:  `A log file is a path, such as file = "/var/log/milkweed.log"; "" selects the default file.`,
		field:   func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Log.File) },
	},
}

// keyOf returns the key of a table with a name. It reports false if there is none.
func keyOf(table, name string) (Key, bool) {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Table == table && k.Name == name })
	if i < 0 {
		return Key{}, false
	}
	return keys[i], true
}
