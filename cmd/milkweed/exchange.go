package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func newExchange() *cobra.Command {
	var o exchangeOptions
	c := &cobra.Command{
		Use:   "exchange MOUNT [FILE|-]",
		Short: "Let each node hold a share of the files, and exchange a part of it before each epoch",
		Long: `Exchange starts partial local shuffling. In each epoch, every node of the roster
holds a share of the files, which its job reads, and before the next epoch a
fraction of each share moves to other nodes, in the background. Each node
computes from the list, the roster, the seed and the fraction who holds which
file; the list and these arguments must be the same on all nodes.

FILE, or the standard input, is a list of files, in the syntax that milkweed
plan --help describes. Without FILE, the exchange that is running goes on with
another epoch. Jobs in Python need no command: milkweed.LocalShuffle of
examples/pytorch/milkweed.py does all of this, and computes which files a
process reads.

A node needs room for the files of two epochs, about (1 + Q) times its share. A
file that was given away is dropped when all readers of this node have begun the
next epoch and the new holder has received its share, or when the room is
needed. No other command drops copies of files that the source has. Other files,
and their copies, are not touched. While there is an exchange, a node gets no
copies of files that it does not hold, and reads them from their holders. Nodes
that are slow, or down, cost reads from the source.

--show prints the share, what has arrived for the next epoch, and the epochs of
all nodes. With --json, it prints one object on one line: the state of this node
as in the status, and nodes[], each with name, id, epoch, and received: whether
the node has a copy of each file that it holds.

Exchange exits with 2 if FILE or the arguments are wrong, with 5 if the tiers
have no room for the files of two epochs, and with 7 if MOUNT is not in a mount
or its daemon does not answer.`,
		Example: `  find /mnt/imagenet/train -type f | milkweed exchange --fraction 0.3 --seed 1 /mnt/imagenet -
  milkweed exchange --epoch 1 /mnt/imagenet
  milkweed exchange --show /mnt/imagenet
  milkweed exchange --stop /mnt/imagenet`,
		Args:              usage(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c, args)
		},
	}
	f := c.Flags()
	f.Float64VarP(&o.request.Fraction, "fraction", "q", 0.3, "the fraction `Q` of each share that moves before an epoch, from 0 to 1")
	f.Uint64Var(&o.request.Seed, "seed", 0, "the `NUMBER` that determines all random choices")
	f.IntVar(&o.request.Epoch, "epoch", 0, "the `NUMBER` of the epoch that this node begins")
	f.IntVar(&o.request.Reader, "reader", 0, "the `NUMBER` of the process that begins it, from 0, if the node has several")
	f.IntVar(&o.request.Readers, "readers", 1, "how many `PROCESSES` of this node read files")
	f.BoolVar(&o.request.ByBytes, "by-bytes", false, "balance the shares by bytes, too; the sizes are those of the files in the mount")
	f.BoolVarP(&o.null, "null", "0", false, "paths end with a NUL instead of a newline")
	f.BoolVar(&o.show, "show", false, "show how far the exchange is")
	f.BoolVar(&o.json, "json", false, "with --show, print JSON")
	f.BoolVar(&o.stop, "stop", false, "end the exchange; copies stay where they are")
	return c
}

// exchangeOptions are the flags of exchange.
type exchangeOptions struct {
	request          control.ExchangeRequest
	null             bool // paths end with a NUL
	show, json, stop bool
}

func (o exchangeOptions) run(c *cobra.Command, args []string) error {
	switch {
	case o.show && o.stop:
		return usageError(c, errors.New("--show and --stop exclude each other"))
	case o.json && !o.show:
		return usageError(c, errors.New("--json needs --show"))
	case (o.show || o.stop) && len(args) > 1:
		return usageError(c, errors.New("--show and --stop take no FILE"))
	}
	m, name, err := control.Find(args[0])
	if err != nil {
		return err
	}
	client, err := control.Dial(c.Context(), m.Point)
	if err != nil {
		return err
	}
	defer client.Close()
	w := c.OutOrStdout()
	switch {
	case o.show:
		return o.print(c.Context(), w, client, m.Point)
	case o.stop:
		return client.StopExchange(c.Context())
	case len(args) == 1:
		return o.begin(c, client, m.Point)
	}
	given := m.Point
	if name == "." {
		given = args[0]
	}
	body, err := o.body(c.InOrStdin(), args[1], given, m.Point)
	if err != nil {
		return err
	}
	s, err := client.StartExchange(c.Context(), o.request, body)
	if err == nil {
		fmt.Fprintf(w, "%s: %s\n", text(m.Point), exchangeSummary(s))
	}
	return err
}

// begin begins an epoch of the exchange that is running.
func (o exchangeOptions) begin(c *cobra.Command, client *control.Client, point string) error {
	for _, name := range []string{"fraction", "seed", "by-bytes"} {
		if c.Flags().Changed(name) {
			return usageError(c, fmt.Errorf("--%s needs FILE", name))
		}
	}
	s, err := client.Exchange(c.Context())
	if err != nil {
		return err
	}
	if s.ID == "" {
		return &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("%s: there is no exchange", point), Remedy: "Start one: milkweed exchange MOUNT FILE, where FILE lists the files.",
		}
	}
	return client.BeginEpoch(c.Context(), s.ID, o.request.Epoch, o.request.Reader, o.request.Readers)
}

// body returns the body of the request for the paths in a file.
func (o exchangeOptions) body(in io.Reader, file, given, point string) ([]byte, error) {
	names, err := readList(in, file, o.null, point, given)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var body bytes.Buffer
	for _, name := range slices.Compact(names) {
		body.WriteString(name)
		body.WriteByte(0)
		if o.request.ByBytes {
			info, err := os.Stat(filepath.Join(point, name))
			if err != nil {
				return nil, &exit.Error{Code: exit.Usage, Err: err, Remedy: "Balance by bytes needs the size of each file."}
			}
			fmt.Fprintf(&body, "%d\x00", info.Size())
		}
	}
	return body.Bytes(), nil
}

// An exchangeReport is the JSON of exchange --show.
type exchangeReport struct {
	placement.ExchangeStats
	Others []exchangeNode `json:"nodes"`
}

// An exchangeNode is how far a node is.
type exchangeNode struct {
	Name     string `json:"name"`
	ID       string `json:"id,omitempty"`
	Epoch    int64  `json:"epoch"`
	Received bool   `json:"received"`
	Problem  string `json:"problem,omitempty"`
}

// print prints the state of the exchange.
func (o exchangeOptions) print(ctx context.Context, w io.Writer, client *control.Client, point string) error {
	s, err := client.Exchange(ctx)
	if err != nil {
		return err
	}
	peers, err := client.Peers(ctx)
	if err != nil {
		return err
	}
	r := exchangeReport{s, []exchangeNode{}}
	for _, p := range peers.Nodes {
		n := exchangeNode{Name: p.Name, Problem: p.Problem}
		if p.Exchange != nil {
			n.ID, n.Epoch, n.Received = p.Exchange.ID, p.Exchange.Epoch, p.Exchange.Received
		}
		r.Others = append(r.Others, n)
	}
	if o.json {
		return printJSON(w, r)
	}
	if s.ID == "" {
		_, err := fmt.Fprintf(w, "%s: no exchange\n", text(point))
		return err
	}
	fmt.Fprintf(w, "%s: %s\n\n", text(point), exchangeSummary(s))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "share\t%s (%s), %s without a copy\n", files(s.ShareFiles), size(s.ShareBytes), count(s.Missing))
	fmt.Fprintf(t, "next epoch\t%s of %s arrived (%s of %s)\n", count(s.ArrivedFiles), files(s.IncomingFiles), size(s.ArrivedBytes), size(s.IncomingBytes))
	fmt.Fprintf(t, "given away\t%s (%s) kept until their new holders have their shares\n", files(s.GivenFiles), size(s.GivenBytes))
	fmt.Fprintf(t, "room\t%s for two epochs, at most %s so far\n", size(s.Room), size(s.MostRoom))
	fmt.Fprintf(t, "dropped\t%s that were given away, %s for room\n", files(s.Dropped), count(s.DroppedForRoom))
	if err := t.Flush(); err != nil || len(r.Others) == 0 {
		return err
	}
	fmt.Fprintln(t, "\nNODE\tEPOCH\tLAG\tSTATE")
	for _, n := range r.Others {
		epoch, lag, state := "-", "-", cmp.Or(text(n.Problem), "no exchange")
		switch {
		case n.Problem != "" || n.ID == "":
		case n.ID != s.ID:
			state = "another exchange"
		default:
			epoch, lag, state = count(n.Epoch), count(s.Epoch-n.Epoch), "waits for files"
			if n.Received {
				state = "has its share"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", text(n.Name), epoch, lag, state)
	}
	return t.Flush()
}

// exchangeSummary describes an exchange in one line.
func exchangeSummary(s placement.ExchangeStats) string {
	return fmt.Sprintf("epoch %s of %s on %s, of which this is number %s; a fraction of %v moves before each epoch",
		count(s.Epoch), files(s.Files), plural(s.Nodes, "node", "nodes"), count(s.Node), s.Fraction)
}
