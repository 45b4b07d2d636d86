package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/drivers/peer"
)

func newPeers() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "peers [PATH]",
		Short: "Show the nodes that share their tiers",
		Long: `Peers shows the nodes that share their tiers with a mount: whether each answers,
what its tiers hold, and what this node has read from it and served to it. The
daemon asks each node when the command runs.

PATH is a mount point or a path below one. Without PATH, peers shows every mount
of Milkweed that this user may inspect.

A mount has peers if it was made with --peers ROSTER, or with peers.roster in
the configuration. The roster must be the same on all nodes. It is one of

  node1,node[2-4]    a list; brackets are those of Slurm, and a port may follow
                     a name, as in node1:7441
  file:PATH          a file with one node on each line
  slurm              the nodes of the Slurm job in which the mount is made
  dns:NAME           the addresses of a name, such as that of a headless service
                     of Kubernetes; the mount waits until there are peers.min

Each file has one node that reads it from the source, which the hash of its name
and the roster determine. All other nodes read it from there. With peers.group,
the roster is divided into groups, each of which does so by itself, and peers
shows the group of this node.

The columns READ and SERVED are the bytes that this node has read from the node
and has served to it. FAILOVERS counts files of which the rest was read
elsewhere, because the node failed. With --json, peers prints one JSON object on
one line for each mount: roster, self, and nodes, an array with what each node
has answered.`,
		Example: `  milkweed peers
  milkweed peers --json /mnt/imagenet | jq '.nodes[] | select(.problem)'
  (umask 077; milkweed peers keygen > ~/job.key)`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			show := func(s control.Status) error { return showPeers(c.Context(), c.OutOrStdout(), s.MountPoint, asJSON) }
			if len(args) == 0 {
				return showEvery(c.Context(), c.OutOrStdout(), func(_ io.Writer, s control.Status) error {
					if s.Draining {
						return nil // it has no peers any more
					}
					return show(s)
				})
			}
			m, _, err := control.Find(args[0])
			if err != nil {
				return err
			}
			return showPeers(c.Context(), c.OutOrStdout(), m.Point, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(newKeygen())
	return c
}

func newKeygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Print a new secret for the nodes of a job",
		Long: `Keygen prints a new random secret. The nodes of a job prove with it that they
belong together: store it in a file that only its owner may read, and give that
file to all nodes, with --peers-secret or peers.secret_file. With umask 077, the
shell makes such a file. In a job of Slurm, sbcast copies it to the nodes.

Whoever has the secret can read the dataset from the nodes.`,
		Example: `  (umask 077; milkweed peers keygen > ~/job.key)
  milkweed peers keygen | kubectl create secret generic milkweed --from-file=job.key=/dev/stdin`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := io.WriteString(c.OutOrStdout(), peer.NewSecret())
			return err
		},
	}
}

// showPeers prints the peers of a mount.
func showPeers(ctx context.Context, w io.Writer, point string, asJSON bool) error {
	c, err := control.Dial(ctx, point)
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.Peers(ctx)
	switch {
	case err != nil:
		return err
	case asJSON:
		if r.Nodes == nil { // without peers; the array is empty, and not null
			r.Nodes = []control.PeerAnswer{}
		}
		return printJSON(w, r)
	case len(r.Nodes) == 0:
		_, err := fmt.Fprintf(w, "%s: no peers; milkweed mount --peers shares the tiers of several nodes\n", text(point))
		return err
	}
	return printPeers(w, point, r)
}

// members describes the nodes of a group.
func members(r control.Roster) string {
	nodes := plural(r.Nodes, "node", "nodes")
	if r.Groups > 1 {
		return fmt.Sprintf("group %s of %s, %s", count(r.Group), count(r.Groups), nodes)
	}
	return nodes
}

// printPeers prints the nodes in a table.
func printPeers(w io.Writer, point string, r control.PeerReport) error {
	self, answers := "this node is not one of them", int64(0)
	if r.Self != "" {
		self = "this one is " + text(r.Self)
	}
	for _, n := range r.Nodes {
		if n.Problem == "" {
			answers++
		}
	}
	fmt.Fprintf(w, "%s: %s, %s; %s of them up; roster %.12s\n\n", text(point), members(r.Roster), self, count(answers), r.Roster.Hash)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tHOLDS\tOF\tFILES\tFROM SOURCE\tREAD\tSERVED\tFAILOVERS\tADDRESS\tSTATE")
	for _, n := range r.Nodes {
		holds, of, files, source := "-", "-", "-", "-"
		if n.Problem == "" {
			holds, of, files, source = size(n.UsedBytes), size(n.QuotaBytes), count(n.Files), size(n.SourceBytes)
		}
		read, served, failovers, state := size(n.Bytes), size(n.ServedBytes), count(n.Failovers), cmp.Or(n.Problem, "up")
		if n.Self {
			read, served, failovers, state = "-", "-", "-", "this node"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", text(n.Name), holds, of, files, source, read, served, failovers, n.Address, text(state))
	}
	return t.Flush()
}
