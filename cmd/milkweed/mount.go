package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/automount"
	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

const (
	mountLong = `Mount mounts a dataset, and returns when the mount is ready. A daemon serves
the mount in the background until the dataset is unmounted. With --foreground
the command itself serves the mount, and Ctrl-C unmounts.

If SOURCE is a symbolic link to a directory, or the URL of an object that
contains the name of a directory beside it, the mount shows that directory, and
continues to do so when the link is changed: it pins a generation of the
dataset. See milkweed switch --help.

With --supervise, a second process waits for the daemon. If the daemon crashes,
it removes the dead mount and mounts again, with the same arguments: at once the
first time, then after a pause that doubles from 1 s to 1 min. It gives up after
10 crashes in a row; a daemon that has served for 10 minutes begins a new row.
Files that were open fail with ENOTCONN. Unmounting ends both processes.

With --while-locked FILE, the daemon unmounts when no process has a lock on
FILE, as flock(1) makes it, also if all of them were killed. Mount fails unless
a process has one. While a process uses files of the mount, it stays. A job that
takes a shared lock on FILE before it looks for the mount finds one that stays,
or none.

With --fuse-fd N, another process has mounted the file system and passes on the
descriptor N of /dev/fuse: the command needs no right to mount, and MOUNTPOINT
is only the name of the mount, for messages and milkweed status. The process
that has mounted it sets the mount options; with allow_other among them, add
-o allow_other. If default_permissions is among them, too, the option
-o allow_other,default_permissions lets the mount be idmapped; without it there,
all accesses would fail. --fuse-fd needs --foreground. The command exits with 0
when that process unmounts. SIGTERM ends the command, and the mount fails with
ENOTCONN. A MOUNTPOINT of /dev/fd/N that is /dev/fuse means --fuse-fd N, as for
other FUSE file systems. The name is then where the kernel shows the mount, if
it tells (Linux 6.17), or else /proc/PID/fd/N.

SIGHUP makes the daemon read its configuration again; see milkweed config reload
--help. In the foreground of a terminal, it unmounts.

SOURCE is the directory or the URL of the bucket that holds the dataset.
Milkweed never writes to it. MOUNTPOINT is an empty directory, or one on which
an automounter mounts, as with x-systemd.automount. A single argument is
MOUNTPOINT if a configuration file sets the source. With both arguments, only
the configuration file of -c or of the option config is read; without one,
copies go to memory (/dev/shm) and to the cache folder, and the command prints
the quota of each.

A configuration file sets the tiers and everything else. It is the file of -c;
or else of $MILKWEED_CONFIG; or else the first that exists of ./tiering.toml,
~/.config/milkweed/tiering.toml and /etc/milkweed/tiering.toml. Arguments and
flags override -o, and -o overrides the file. With a profile, the values that
none of them sets are those of the profile, if it has them, in place of the
defaults. milkweed config profiles lists the profiles.

The URL of a bucket is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
azblob://CONTAINER/PREFIX. /PREFIX may be omitted. Options follow a "?" and are
separated by "&", so the URL must be quoted in a shell:

  endpoint=URL       a server other than the vendor's own
  region=NAME        s3: the region of the bucket; by default AWS_REGION or the
                     region of the profile
  profile=NAME       s3: a profile of the shared configuration; by default
                     AWS_PROFILE
  path_style=BOOL    s3: whether the bucket is in the path of a request instead
                     of the host name; the default is true with an endpoint
  requester_pays=true
                     s3: the account of the credentials pays for requests
  billing_project=PROJECT
                     gs: the project that pays for requests, for a bucket whose
                     requester pays
  account=NAME       azblob: the storage account, if there is no endpoint
  anonymous=true     do not sign requests
  hedge=DURATION     send a read a second time if its response has not begun
                     after this time, such as 500ms; by default never

Milkweed finds credentials where the vendor's own tools find them: in
environment variables, which the daemon inherits, in files, and from the
services that these tools use. Paths to such files must be absolute, because
the working directory of the daemon is /. A URL that contains credentials is an
error.

A mount starts without a tier that hangs or fails, or whose disk is not mounted,
and prints a warning. The tier is used when it works.

The mode determines how the kernel reads the content of files. In passthrough
the kernel reads files on tiers directly. This needs CAP_SYS_ADMIN and Linux
6.9. Files for which it does not work are read as in cached. In stateless an
open needs no FUSE round trip. This suits small files. In cached each open, and
each read that misses the page cache, goes through the daemon. With auto, the
default, the sizes of a few files decide. status prints the mode and the reason.

Options of -o and /etc/fstab are config=FILE, profile=NAME, allow_other,
force_allow_other, xattrs, workers=N, attr_timeout=DURATION,
consistency=DURATION, mode=MODE, metadata_snapshot=PLACE, plan=FILE,
window=QUOTA, generation=GEN, manifest=FILE, source_bandwidth=SIZE,
source_operations=N, clock_skew=DURATION, scrub_interval=DURATION,
scrub_rate=SIZE, peers=ROSTER,
peers_secret=FILE, peers_name=NAME, peers_listen=ADDRESS, peers_serve=BOOL,
peers_gossip=BOOL, peers_min=N, peers_wait=DURATION, peers_group=N,
peers_tls_cert=FILE, peers_tls_key=FILE, peers_tls_ca=FILE, metrics=ADDRESS,
log_level=LEVEL, log_format=FORMAT and log_file=FILE. Options of mount(8) and
systemd such as ro, noauto, nofail, _netdev, user and x-systemd.automount are
accepted and have no effect here; noexec forbids executing files of the mount.
The mount is always read-only, nosuid and nodev.
metadata_snapshot is where names and attributes are saved for the next mount:
"auto", beside the copies in a tier; a file; or "off". plan is a file with the
paths that a job will open, one on each line; see milkweed plan --help. window
is the room on the fastest tier for planned files that no tier has room for.
source_bandwidth and source_operations are limits per second on reads and
operations at the source. With scrub_interval, the daemon compares all copies
with their checksums from time to time.

With --manifest, the names of the mount are those of a manifest, which milkweed
manifest writes: nothing is listed, and later changes of the source are not
shown. A file whose content is not the one in the manifest fails with EIO when
that is known: for a file of up to 1 MiB before its first byte is read, for a
larger one when its copy is complete. Only complete copies with the right
SHA-256 are kept. With dataset:NAME, the manifest is a file of the dataset, and
each generation has its own. Files that no tier has room for are not hashed.

With --peers, the nodes of a roster share their tiers: together they read each
byte of the source once. All nodes mount the same dataset with the same roster
and the same secret, which milkweed peers keygen makes. milkweed peers --help
describes rosters.

In the background, the daemon logs to the file of log.file or --log-file, or by
default to a file in $XDG_STATE_HOME/milkweed (~/.local/state/milkweed) with
the id of the dataset as its name. In the foreground the default is standard
error, and a service manager is notified when the mount is ready (Type=notify in
systemd).`

	mountExample = `  milkweed mount /lustre/imagenet /mnt/imagenet
  milkweed mount -c tiering.toml
  milkweed mount --tier ram:/dev/shm/milkweed:64GiB --tier ssd:/local/milkweed:90% /lustre/imagenet /mnt/imagenet
  milkweed mount --profile imagenet-folder /lustre/imagenet /mnt/imagenet
  flock --shared job.lock sh -c 'milkweed mount --while-locked job.lock /lustre/imagenet /mnt/imagenet && python3 train.py /mnt/imagenet'
  milkweed mount -f --log-level debug /lustre/imagenet /mnt/imagenet
  milkweed mount -f --fuse-fd 3 -o allow_other /lustre/imagenet /mnt/imagenet
  milkweed mount 's3://imagenet/2012?region=eu-west-1' /mnt/imagenet
  milkweed mount 's3://imagenet?endpoint=https://minio.example.org:9000' /mnt/imagenet
  milkweed mount 'gs://imagenet/2012?anonymous=true' /mnt/imagenet

  # on each of four nodes:
  milkweed mount --peers 'node[1-4]' --peers-secret ~/job.key /lustre/imagenet /mnt/imagenet

  # in /etc/fstab:
  /lustre/imagenet  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0
  s3://imagenet/2012?region=eu-west-1  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0`
)

func newMount() *cobra.Command {
	var f mountFlags
	c := &cobra.Command{
		Use:     "mount [-c tiering.toml] [SOURCE] [MOUNTPOINT]",
		Short:   "Mount a dataset",
		Long:    mountLong,
		Example: mountExample,
		Args:    usage(cobra.MaximumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			return f.mount(c.Context(), c.Flags(), args, c.ErrOrStderr())
		},
	}
	f.addConfiguration(c.Flags())
	f.addDaemon(c.Flags())
	return c
}

// mountFlags are the flags of mount, except those that set a key of the
// configuration; for these see config.Key.
type mountFlags struct {
	check      bool // the command is check, which needs no mount point
	config     string
	options    []string
	tiers      []string
	foreground bool
	watched    bool // --supervise
	clearStale bool
	fake       bool
	fuseFD     int    // --fuse-fd; 0: none
	passed     string // the mount point if it has set fuseFD; ""

	unlessMounted bool // for mount.milkweed

	whileLocked string // --while-locked; "": none

	file     string // the configuration file that load has read; "" if there is none
	isLoaded bool   // load has decided on the file, which stays the same
}

// addConfiguration adds the flags that set the configuration of the mount.
func (f *mountFlags) addConfiguration(flags *pflag.FlagSet) {
	flags.StringVarP(&f.config, "config", "c", "", "the configuration `FILE`")
	flags.StringArrayVarP(&f.options, "options", "o", nil, "`OPTIONS` as in /etc/fstab, separated by commas")
	flags.StringArrayVar(&f.tiers, "tier", nil, "add a tier `NAME:PATH:QUOTA`; the flag is repeated, fastest tier first, and replaces the tiers of the file")
	for _, k := range config.Keys() {
		switch {
		case k.Flag == "":
		case k.IsBoolean():
			flags.Bool(k.Flag, false, k.Usage)
		default:
			flags.String(k.Flag, "", k.Usage)
		}
	}
}

// addDaemon adds the flags that determine how the command mounts.
func (f *mountFlags) addDaemon(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.foreground, "foreground", "f", false, "stay in the foreground")
	flags.BoolVar(&f.watched, "supervise", false, "mount again if the daemon crashes")
	flags.BoolVar(&f.clearStale, "clear-stale", false, "first unmount a stale Milkweed mount on MOUNTPOINT; for services that are restarted")
	flags.StringVar(&f.whileLocked, "while-locked", "", "unmount when no process has a lock on `FILE`")
	flags.IntVar(&f.fuseFD, "fuse-fd", 0, "serve the inherited descriptor `N` of /dev/fuse, which is mounted already")
	flags.BoolVar(&f.fake, "fake", false, "do everything except mounting")
	flags.BoolVar(&f.unlessMounted, "unless-mounted", false, "succeed if the dataset is mounted already")
	flags.MarkHidden("fake") // mount(8) passes it as -f
	flags.MarkHidden("unless-mounted")
}

// mount implements the command. It runs in four kinds of processes: a command in
// the foreground, a command that starts a daemon, that daemon, and its supervisor.
func (f *mountFlags) mount(ctx context.Context, flags *pflag.FlagSet, args []string, stderr io.Writer) error {
	defer catchSIGPIPE()() // the program that has started the command may have been killed
	if err := f.passDevice(flags, lastOf(args)); err != nil {
		return err
	}
	if err := f.checkDevice(flags); err != nil {
		return err
	}
	d, err := asDaemon()
	if err != nil {
		return err
	}
	if d == nil && !f.foreground && !f.fake {
		return startDaemon(ctx, lastOf(args)) // a lock that this process has inherited lasts until it exits
	}
	if err := disinherit(f.fuseFD); err != nil {
		return err
	}
	supervisor := asSupervised()
	switch {
	case f.watched && !supervisor.on && !f.fake:
		err = f.supervise(ctx, flags, args, stderr, d)
	default:
		if supervisor.crashes > 0 && !f.foreground {
			stderr = io.Discard // of the supervisor, which has none
		}
		err = f.serve(ctx, flags, args, stderr, d, supervisor)
	}
	if d != nil {
		return d.end(err)
	}
	return err
}

// serve mounts in this process. If this process is a daemon, d reports to the
// process that started it; otherwise d is nil.
func (f *mountFlags) serve(
	ctx context.Context, flags *pflag.FlagSet, args []string, stderr io.Writer, d *starter, by supervised,
) error {
	hangups := catchHangups()
	defer signal.Stop(hangups)
	o, err := f.parseOptions()
	if err == nil && o.defaultPermissions {
		err = f.checkPermissions()
	}
	if err != nil {
		return err
	}
	c, asked, err := f.loadTwo(flags, args, stderr)
	if err != nil || f.fake {
		return err
	}
	if f.unlessMounted {
		mounted, err := isMounted(ctx, c)
		if mounted && d != nil {
			d.ready(false)
		}
		if mounted || err != nil {
			return err
		}
	}
	if f.clearStale || by.crashes > 0 {
		if err := automount.Reach(func() error { return clearStale(ctx, c.Mount.Point) }); err != nil {
			return err
		}
	}
	lock, lockErr := f.openLock()
	isGone := by.crashes > 0 && errors.Is(lockErr, os.ErrNotExist) // whether a process has a lock is not known any more
	if lockErr != nil && !isGone {
		return lockErr
	}
	defer lock.close()
	examine := check.BeforeMount
	if f.fuseFD != 0 {
		examine = check.BeforeServing
	}
	findings := examine(ctx, c)
	if err := check.First(findings); err != nil {
		return err
	}
	log, ready, err := f.openLog(c, stderr, d)
	if err != nil {
		return err
	}
	defer log.close()
	slog.SetDefault(log.Logger) // for package panics
	if by.crashes > 0 {
		log.Warn("mounting again after a crash", "cause", by.cause, "crashes", by.crashes)
	}
	if isGone {
		log.Warn("the mount does not end with a lock any more", "err", lockErr)
	}
	again := rereading{
		asked: asked, setLevel: log.setLevel, hangups: hangups,
		read: func(tiers []config.Tier) (*config.Config, error) {
			c, err := f.values(flags, args, func(c *config.Config) error { c.Tiers = tiers; return nil })
			if err != nil {
				return nil, err
			}
			return c, c.ValidateValues()
		},
	}
	how := mounting{noExec: o.noExec, device: f.fuseFD, defaultPermissions: o.defaultPermissions, lock: lock}
	return serve(ctx, c, again, how, log, by.crashes, func() {
		for _, f := range findings {
			switch {
			case f.Status != check.Warning:
			case f.Name == "source":
				log.Warn("the source may be a wrong one", "problem", f.Detail, "remedy", f.Remedy)
			case f.Name == check.LimitsName:
				log.Warn("a limit concerns the mount", "limit", f.Detail, "remedy", f.Remedy)
			}
		}
		ready()
	})
}

// isMounted reports whether the dataset of c is mounted at its mount point, and the daemon answers. The error is that
// of a daemon that does not run, or hangs.
func isMounted(ctx context.Context, c *config.Config) (bool, error) {
	var m control.Mount
	var name string
	err := automount.Reach(func() (err error) {
		m, name, err = control.Find(c.Mount.Point)
		return err
	})
	if err != nil || name != "." || m.Part != "" {
		return false, nil // the checks say what is wrong
	}
	client, err := control.Dial(ctx, m.Point)
	if err != nil {
		return false, nil
	}
	defer client.Close()
	settings, err := client.Settings(ctx)
	if err != nil {
		if errors.As(err, new(*control.SilentError)) {
			return false, err
		}
		return false, nil
	}
	return slices.Equal(datasetOf(settings), datasetOf(c.Settings())), nil
}

// datasetOf returns the values that identify a dataset.
func datasetOf(settings []config.Setting) (values []string) {
	for _, s := range settings {
		switch s.Key {
		case "source.path", "source.url", "source.generation", "source.manifest":
			values = append(values, s.Value)
		}
	}
	return values
}

// openLog opens the log, and returns the function to be called when the mount is ready. A daemon in
// the background then leaves the terminal.
func (f *mountFlags) openLog(c *config.Config, stderr io.Writer, d *starter) (*daemonLog, func(), error) {
	if !f.foreground && c.Log.File == "" {
		var err error
		if c.Log.File, err = defaultLog(c.Source.Name()); err != nil {
			fmt.Fprintf(stderr, "milkweed: warning: the daemon has no log: %s\n  Set --log-file, or $XDG_STATE_HOME to a directory that you may write to.\n", text(err.Error()))
		}
	}
	log, err := openLog(c.Log, f.foreground, stderr)
	return log, func() {
		if d == nil {
			if err := notifyReady(); err != nil {
				log.Warn("the service manager does not know that the mount is ready", "err", err)
			}
			return
		}
		if !f.foreground {
			log.detach()
			d.leave(log.File)
		}
		d.ready(!f.watched)
	}, err
}

// load returns the configuration. The file is overridden by -o, and -o by the flags
// and arguments.
func (f *mountFlags) load(flags *pflag.FlagSet, args []string, stderr io.Writer) (*config.Config, error) {
	c, _, err := f.loadTwo(flags, args, stderr)
	return c, err
}

// loadTwo is load. It also returns the configuration as the user has written it, with which a later one can be
// compared.
func (f *mountFlags) loadTwo(flags *pflag.FlagSet, args []string, stderr io.Writer) (c, asked *config.Config, err error) {
	c, err = f.values(flags, args, func(c *config.Config) error { return setDefaultTiers(c, stderr) })
	if err != nil {
		return nil, nil, err
	}
	validate := c.Validate
	resolve := resolveMountPoint
	switch {
	case f.check:
		validate = c.ValidateForCheck
	case f.fuseFD != 0:
		// The mount point is only a name, and may be in another mount namespace.
		validate, resolve = func() error { return validateServed(c) }, f.nameDevice
	}
	asked = c.Clone()
	if automount.Needed() { // outside of its group, where all directories are what they are for others
		validate = func() error { return cmp.Or(validateServed(c), automount.Reach(c.Validate)) }
	}
	for _, step := range []func() error{
		validate,
		func() error { return parseURL(c) },
		func() error { return automount.Reach(func() error { return resolve(c) }) },
	} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	return c, asked, nil
}

// values reads the values of the configuration. If there is no file and no --tier, it calls defaultTiers.
func (f *mountFlags) values(
	flags *pflag.FlagSet, args []string, defaultTiers func(*config.Config) error,
) (c *config.Config, err error) {
	o, err := f.parseOptions()
	if err != nil {
		return nil, err
	}
	if f.config != "" {
		o.config = f.config
	}
	if c, err = f.loadFile(o.config, args); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return o.set(c) },
		func() error { return setFlags(c, flags) },
		func() error { return setArguments(c, args) },
		func() error { return f.setTiers(c) },
		func() error {
			if f.file == "" && len(c.Tiers) == 0 {
				return defaultTiers(c)
			}
			return nil
		},
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// parseOptions returns the options of -o.
func (f *mountFlags) parseOptions() (options, error) {
	return parseOptions(strings.Join(f.options, ","))
}

// loadFile reads the configuration file at path, or the one that config.Find
// returns. With arguments that name the source, no file is needed: loadFile then returns the
// defaults. With both arguments, path is the only file that it reads. Later calls read the file of the first
// one, if it has read one.
func (f *mountFlags) loadFile(path string, args []string) (*config.Config, error) {
	if !f.isLoaded {
		if path != "" || len(args) < 2 {
			found, err := config.Find(path)
			if err != nil && len(args) != 1 {
				return nil, err
			}
			path = found // "" if no file exists
		}
		f.file, f.isLoaded = path, true
	}
	if f.file == "" {
		d := config.Default()
		return &d, nil
	}
	return config.Load(f.file)
}

// setFlags sets the values of the flags that are on the command line.
func setFlags(c *config.Config, flags *pflag.FlagSet) error {
	for _, k := range config.Keys() {
		if k.Flag == "" || !flags.Changed(k.Flag) {
			continue
		}
		if err := c.Set(k.String(), flags.Lookup(k.Flag).Value.String(), "flag --"+k.Flag); err != nil {
			return err
		}
	}
	return nil
}

// setArguments sets the source and the mount point from args. A single argument is the mount point
// if c has a source, unless it is a URL.
func setArguments(c *config.Config, args []string) error {
	if len(args) == 0 {
		return nil
	}
	source := len(args) == 2 || c.Source.Name() == "" || config.IsURL(args[0])
	if last := len(args) - 1; last > 0 || !source {
		if err := c.Set("mount.point", args[last], "argument MOUNTPOINT"); err != nil {
			return err
		}
	}
	if !source {
		return nil
	}
	return c.SetSource(args[0], "argument SOURCE")
}

// setTiers replaces the tiers by those of --tier, if there are any.
func (f *mountFlags) setTiers(c *config.Config) error {
	if len(f.tiers) > 0 {
		c.Tiers = nil
	}
	for _, tier := range f.tiers {
		// A path may contain colons; a name and a quota do not.
		name, rest, _ := strings.Cut(tier, ":")
		i := strings.LastIndex(rest, ":")
		if name == "" || i <= 0 {
			return optionError(fmt.Errorf("flag --tier: %q is not NAME:PATH:QUOTA", tier), "Write a tier as in --tier ssd:/local/milkweed:500GiB.")
		}
		c.Tiers = append(c.Tiers, config.Tier{Name: name})
		for _, v := range [][2]string{{"name", name}, {"path", rest[:i]}, {"quota", rest[i+1:]}} {
			if err := c.Set("tier."+name+"."+v[0], v[1], "flag --tier"); err != nil {
				return err
			}
		}
	}
	return nil
}

// setDefaultTiers sets the default tiers, and prints them in one write, as printStatus does, if somebody reads that.
func setDefaultTiers(c *config.Config, stderr io.Writer) error {
	tiers, notes, err := config.DefaultTiers(c.Source.Name())
	if err != nil {
		return err
	}
	c.Tiers = tiers
	var lines bytes.Buffer
	for _, note := range notes {
		fmt.Fprintf(&lines, "milkweed: %s\n", text(note))
	}
	fmt.Fprintln(&lines, "milkweed: no configuration file is used; copies go to")
	t := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	for _, tier := range tiers {
		fmt.Fprintf(t, "  %s\t%s\tup to %s\n", tier.Name, text(tier.Path), describeQuota(tier.Quota))
	}
	t.Flush()
	lines.WriteTo(stderr)
	return nil
}

func describeQuota(q config.Quota) string {
	if q.Percent > 0 {
		return q.String() + " of the free space"
	}
	return size(q.Bytes)
}

// lastOf returns the last argument, which is the mount point if there is one, or "".
func lastOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[len(args)-1]
}

// validateServed is c.Validate for a file system that another process has mounted. It does not call the
// file system at the mount point, which may be the one that this process is to serve.
func validateServed(c *config.Config) error {
	if err := c.ValidateValues(); err != nil {
		return err
	}
	without := *c
	without.Mount.Point = ""
	return without.ValidateForCheck()
}

// resolveMountPoint replaces the mount point, if there is one, by the path under which the kernel
// lists it, without symbolic links.
func resolveMountPoint(c *config.Config) error {
	if c.Mount.Point == "" {
		return nil
	}
	point, err := control.Resolve(c.Mount.Point)
	if err != nil {
		return &exit.Error{
			Code:   exit.MountPoint,
			Err:    fmt.Errorf("mount point: %w", err),
			Remedy: "Create an empty directory there.",
		}
	}
	c.Mount.Point = point
	return nil
}
