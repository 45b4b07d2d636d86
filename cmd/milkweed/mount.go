package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newMount() *cobra.Command {
	var f mountFlags
	c := &cobra.Command{
		Use:   "mount [-c tiering.toml] [SOURCE] [MOUNTPOINT]",
		Short: "Mount a dataset",
		Long: `Mount mounts a dataset, and returns when the mount can be used; a daemon goes on
in the background until the dataset is unmounted. With --foreground the command
is the daemon itself, and Ctrl-C unmounts.

SOURCE is the folder with the dataset, or the URL of a bucket; it is never
written to. MOUNTPOINT is an empty folder. Given both and no configuration,
copies go to memory (/dev/shm) and to the cache folder, and the command says how
much of them it will use. A configuration says where copies go; what the command
line says wins over it. It is looked for in $MILKWEED_CONFIG, ./tiering.toml,
~/.config/milkweed/tiering.toml and /etc/milkweed/tiering.toml. A single
argument is MOUNTPOINT.

The URL of a bucket is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
azblob://CONTAINER/PREFIX, where /PREFIX may be left out. Options follow a "?",
with "&" between them, so that a shell wants quotes around it:

  endpoint=URL       a server that is not the vendor's own
  region=NAME        s3: of the bucket; else AWS_REGION or the profile says it
  profile=NAME       s3: of the shared configuration; else AWS_PROFILE says it
  path_style=BOOL    s3: the bucket is in the path of requests, and not in the
                     name of the host; true where there is an endpoint
  account=NAME       azblob: the storage account, if there is no endpoint
  anonymous=true     requests are not signed
  hedge=DURATION     a read that has not begun to answer for so long, such as
                     500ms, is asked for once more; by default never

Credentials are found where the vendor's own tools find them: in the variables
of the environment, which the daemon inherits, in the files and from the
services that these know. Files there are named with absolute paths, since the
daemon works in /. Credentials may not be in the URL.

The mode says how the kernel gets at the content of files. In passthrough it
reads those on tiers by itself, which needs CAP_SYS_ADMIN and Linux 6.9; those
for which that does not work are read as in cached. In stateless it opens files
without asking the daemon and keeps their pages, which suits small files. In
cached each open and each read that the page cache lacks goes through the
daemon. With auto, the default, the sizes of a few files decide; status says
what was chosen, and why.

Options of -o, as /etc/fstab has them: config=FILE, allow_other, workers=N,
attr_timeout=DURATION, mode=MODE, names=FILE, source_bandwidth=SIZE,
source_operations=N, metrics=ADDRESS, log_level=LEVEL, log_format=FORMAT,
log_file=FILE; and those of mount(8) and systemd, which need nothing done here,
such as ro, noauto, nofail, _netdev, user and x-systemd.automount. The mount is
always read-only, nosuid and nodev. In names= the name space is saved at unmount
for the next mount; source_bandwidth= and source_operations= are what may be
asked of the source in a second.

A daemon in the background logs to log.file, or --log-file, or without either to
a file in $XDG_STATE_HOME/milkweed (~/.local/state/milkweed) with the id of the
dataset as its name. In the foreground it logs to the standard error.`,
		Example: `  milkweed mount /lustre/imagenet /mnt/imagenet
  milkweed mount -c tiering.toml
  milkweed mount --tier ram:/dev/shm/milkweed:64GiB --tier ssd:/local/milkweed:90% /lustre/imagenet /mnt/imagenet
  milkweed mount -f --log-level debug /lustre/imagenet /mnt/imagenet
  milkweed mount 's3://imagenet/2012?region=eu-west-1' /mnt/imagenet
  milkweed mount 's3://imagenet?endpoint=https://minio.example.org:9000' /mnt/imagenet
  milkweed mount 'gs://imagenet/2012?anonymous=true' /mnt/imagenet

  # in /etc/fstab:
  /lustre/imagenet  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0
  s3://imagenet/2012?region=eu-west-1  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0`,
		Args: usage(cobra.MaximumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			return f.mount(c.Context(), c.Flags(), args, c.ErrOrStderr())
		},
	}
	f.add(c.Flags())
	f.addDaemon(c.Flags())
	return c
}

// mountFlags are the flags of mount. Those that are values of the configuration
// are not here but in flagKeys.
type mountFlags struct {
	config     string
	options    []string
	tiers      []string
	foreground bool
	clearStale bool
	fake       bool
}

// flagKeys are the flags that are values of the configuration.
var flagKeys = []struct{ flag, key, help string }{
	{"workers", "placement.workers", "copy `N` files at the same time; the default is 8, and 64 from a bucket"},
	{"attr-timeout", "mount.attr_timeout", "`DURATION` for which names and sizes are believed before the source is asked again, such as 30s"},
	{"metrics-listen", "metrics.listen", "`ADDRESS` where Prometheus finds the metrics, such as 127.0.0.1:9877"},
	{"log-level", "log.level", "`LEVEL` of the least severe messages to log: debug, info, warn or error"},
	{"log-format", "log.format", "`FORMAT` of the log: text or json"},
	{"log-file", "log.file", "`FILE` to log to"},
}

// add adds the flags that say what to mount.
func (f *mountFlags) add(flags *pflag.FlagSet) {
	flags.StringVarP(&f.config, "config", "c", "", "the configuration `FILE`")
	flags.StringArrayVarP(&f.options, "options", "o", nil, "`OPTIONS` as in /etc/fstab, between commas")
	flags.StringArrayVar(&f.tiers, "tier", nil, "a tier, as `NAME:PATH:QUOTA`, in place of those of the configuration; repeat it, fastest first")
	flags.Bool("allow-other", false, "let other users read the mount")
	for _, k := range flagKeys {
		flags.String(k.flag, "", k.help)
	}
}

// addDaemon adds the flags that say how.
func (f *mountFlags) addDaemon(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.foreground, "foreground", "f", false, "stay in the foreground")
	flags.BoolVar(&f.clearStale, "clear-stale", false, "unmount what a Milkweed that died has left on MOUNTPOINT first, as a service that is restarted needs")
	flags.BoolVar(&f.fake, "fake", false, "do all but mount")
	flags.MarkHidden("fake") // what mount(8) calls -f
}

// mount is the command. There are three processes that can be in it: the one
// in the foreground; the one that starts a daemon; and that daemon.
func (f *mountFlags) mount(ctx context.Context, flags *pflag.FlagSet, args []string, stderr io.Writer) error {
	d, err := asDaemon()
	if err != nil {
		return err
	}
	if d == nil && !f.foreground && !f.fake {
		return startDaemon(ctx)
	}
	err = f.serve(ctx, flags, args, stderr, d)
	if d != nil {
		return d.end(err)
	}
	return err
}

// serve mounts in this process, which was started by d if that is not nil.
func (f *mountFlags) serve(ctx context.Context, flags *pflag.FlagSet, args []string, stderr io.Writer, d *starter) error {
	c, noExec, err := f.load(flags, args, stderr)
	if err != nil || f.fake {
		return err
	}
	if f.clearStale {
		if err := clearStale(ctx, c.Mount.Point); err != nil {
			return err
		}
	}
	if err := check.First(check.Run(ctx, c)); err != nil {
		return err
	}
	if d != nil && c.Log.File == "" {
		c.Log.File = defaultLog(c.Source.Name())
	}
	log, err := openLog(c.Log, f.foreground, stderr)
	if err != nil {
		return err
	}
	defer log.close()
	ready := func() {
		if d != nil {
			log.detach()
			d.ready(log.File)
		}
	}
	return serve(ctx, c, noExec, log.Logger, ready)
}

// load puts together the configuration, in the order in which one wins over
// the other: the file, -o, the flags and arguments. It also returns whether
// nothing in the mount may be executed.
func (f *mountFlags) load(flags *pflag.FlagSet, args []string, stderr io.Writer) (c *config.Config, noExec bool, err error) {
	o, err := parseOptions(strings.Join(f.options, ","))
	if err != nil {
		return nil, false, err
	}
	if f.config != "" {
		o.config = f.config
	}
	c, isDefault, err := f.file(o.config, args)
	if err != nil {
		return nil, false, err
	}
	for _, set := range []func() error{
		func() error { return o.set(c) },
		func() error { return setFlags(c, flags) },
		func() error { return setPlaces(c, args) },
		func() error { return f.setTiers(c) },
	} {
		if err := set(); err != nil {
			return nil, false, err
		}
	}
	if isDefault && len(c.Tiers) == 0 {
		if err := defaultTiers(c, stderr); err != nil {
			return nil, false, err
		}
	}
	for _, settle := range []func() error{
		c.Validate,
		func() error { return parseURL(c) },
		func() error { return resolvePoint(c) },
	} {
		if err := settle(); err != nil {
			return nil, false, err
		}
	}
	return c, o.noExec, nil
}

// file reads the configuration file. A command line that says both places
// needs none, and then none is looked for.
func (f *mountFlags) file(path string, args []string) (c *config.Config, isDefault bool, err error) {
	if path == "" && len(args) == 2 {
		d := config.Default()
		return &d, true, nil
	}
	path, err = config.Find(path)
	if err != nil {
		return nil, false, err
	}
	c, err = config.Load(path)
	return c, false, err
}

func setFlags(c *config.Config, flags *pflag.FlagSet) error {
	if flags.Changed("allow-other") {
		if err := c.Set("mount.allow_other", flags.Lookup("allow-other").Value.String(), "flag --allow-other"); err != nil {
			return err
		}
	}
	for _, k := range flagKeys {
		if !flags.Changed(k.flag) {
			continue
		}
		if err := c.Set(k.key, flags.Lookup(k.flag).Value.String(), "flag --"+k.flag); err != nil {
			return err
		}
	}
	return nil
}

// setPlaces takes [[SOURCE] MOUNTPOINT].
func setPlaces(c *config.Config, args []string) error {
	if len(args) == 0 {
		return nil
	}
	last := len(args) - 1
	if err := c.Set("mount.point", args[last], "argument MOUNTPOINT"); err != nil || last == 0 {
		return err
	}
	return c.SetSource(args[0], "argument SOURCE")
}

func (f *mountFlags) setTiers(c *config.Config) error {
	if len(f.tiers) > 0 {
		c.Tiers = nil
	}
	for _, said := range f.tiers {
		// A path may have colons in it, a name and a quota have none.
		name, rest, _ := strings.Cut(said, ":")
		i := strings.LastIndex(rest, ":")
		if name == "" || i <= 0 {
			return optionError(fmt.Errorf("flag --tier: %q is not NAME:PATH:QUOTA", said), "A tier is written as ssd:/local/milkweed:500GiB.")
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

// defaultTiers chooses the tiers, and says which.
func defaultTiers(c *config.Config, stderr io.Writer) error {
	tiers, err := config.DefaultTiers(c.Source.Name())
	if err != nil {
		return err
	}
	c.Tiers = tiers
	fmt.Fprintln(stderr, "milkweed: no configuration was given; copies go to")
	t := tabwriter.NewWriter(stderr, 0, 0, 2, ' ', 0)
	for _, tier := range tiers {
		fmt.Fprintf(t, "  %s\t%s\tup to %s\n", tier.Name, text(tier.Path), quota(tier.Quota))
	}
	return t.Flush()
}

func quota(q config.Quota) string {
	if q.Percent > 0 {
		return q.String() + " of what is free there"
	}
	return size(q.Bytes)
}

// resolvePoint gives the mount point the name that the kernel lists it under.
func resolvePoint(c *config.Config) error {
	point, err := control.Resolve(c.Mount.Point)
	if err != nil {
		return &exit.Error{
			Code:   exit.MountPoint,
			Err:    fmt.Errorf("mount point: %w", err),
			Remedy: "Make an empty folder there.",
		}
	}
	c.Mount.Point = point
	return nil
}
