package control

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/placement/exchange"
)

// An ExchangeRequest is a POST /v1/exchange. In the body, each file is its path relative to the root
// of the mount and a NUL, in the order of the bytes of the paths. If the shares are balanced by bytes,
// the size in decimal and a NUL follow.
type ExchangeRequest struct {
	Seed            uint64
	Fraction        float64
	Nodes, Node     int // 0 nodes: those of the roster of the mount
	Epoch           int
	Reader, Readers int
	ByBytes         bool
}

// Limits of POST /v1/exchange.
const (
	maxExchange     = 1 << 30          // bytes in the body
	exchangeTimeout = 30 * time.Second // for a MiB of it
)

// query returns the request as the parameters of a URL.
func (r ExchangeRequest) query() url.Values {
	q := url.Values{
		"seed": {strconv.FormatUint(r.Seed, 10)}, "fraction": {strconv.FormatFloat(r.Fraction, 'g', -1, 64)}, "balance": {r.balance()},
		"epoch": {strconv.Itoa(r.Epoch)}, "reader": {strconv.Itoa(r.Reader)}, "readers": {strconv.Itoa(r.Readers)},
	}
	if r.Nodes > 0 {
		q.Set("nodes", strconv.Itoa(r.Nodes))
		q.Set("node", strconv.Itoa(r.Node))
	}
	return q
}

func (r ExchangeRequest) balance() string {
	if r.ByBytes {
		return "bytes"
	}
	return "count"
}

// parseExchange is the inverse of query.
func parseExchange(q url.Values) (r ExchangeRequest, err error) {
	if r.Seed, err = strconv.ParseUint(q.Get("seed"), 10, 64); err != nil {
		return r, exchangeError(fmt.Errorf("seed: %q is not a number from 0 to 2⁶⁴-1", q.Get("seed")))
	}
	if r.Fraction, err = strconv.ParseFloat(q.Get("fraction"), 64); err != nil || !(r.Fraction >= 0 && r.Fraction <= 1) {
		return r, exchangeError(fmt.Errorf("fraction: %q is not a number from 0 to 1", q.Get("fraction")))
	}
	switch balance := q.Get("balance"); balance {
	case "bytes":
		r.ByBytes = true
	case "", "count":
	default:
		return r, exchangeError(fmt.Errorf("balance: %q is neither count nor bytes", balance))
	}
	if r.Nodes, err = number(q, "nodes", 0); err != nil {
		return r, err
	}
	if r.Node, err = number(q, "node", 0); err != nil {
		return r, err
	}
	r.Epoch, r.Reader, r.Readers, err = parseEpoch(q)
	return r, err
}

// parseEpoch returns the parameters of a request that say which reader begins which epoch.
func parseEpoch(q url.Values) (epoch, reader, readers int, err error) {
	if epoch, err = number(q, "epoch", 0); err != nil {
		return
	}
	if reader, err = number(q, "reader", 0); err != nil {
		return
	}
	readers, err = number(q, "readers", 1)
	return
}

// number returns a parameter, or a default if it is missing.
func number(q url.Values, name string, missing int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, exchangeError(fmt.Errorf("%s: %q is not a number from 0 on", name, text))
	}
	return int(n), nil
}

// exchangeError returns err as the error of a wrong request.
func exchangeError(err error) error {
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("exchange: %w", err)}
}

// newExchangeID begins the hash that identifies the arguments of an exchange. The body follows.
func newExchangeID(r ExchangeRequest) hash.Hash {
	h := sha256.New()
	fmt.Fprintf(h, "milkweed exchange 1\n%d %d %016x %s\n", r.Nodes, r.Seed, math.Float64bits(r.Fraction), r.balance())
	return h
}

// startExchange serves POST /v1/exchange.
func (s *Server) startExchange(w http.ResponseWriter, r *http.Request) {
	req, err := parseExchange(r.URL.Query())
	if err != nil {
		respondError(w, err)
		return
	}
	if req.Nodes == 0 {
		req.Nodes, req.Node = s.Daemon.Nodes()
	}
	cfg := placement.ExchangeConfig{Seed: req.Seed, Fraction: req.Fraction, Nodes: req.Nodes, Node: req.Node}
	id := newExchangeID(req)
	conn := http.NewResponseController(w)
	body := &deadlined{r: http.MaxBytesReader(w, r.Body, maxExchange), conn: conn}
	cfg.Files, cfg.Sizes, err = readFiles(io.TeeReader(body, id), req.ByBytes)
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		err = fmt.Errorf("more than %d MiB", maxExchange>>20)
		fallthrough
	case err != nil:
		respondError(w, exchangeError(err))
		return
	}
	conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	cfg.ID = hex.EncodeToString(id.Sum(nil)[:16])
	if err := s.Daemon.StartExchange(r.Context(), cfg, req.Epoch, req.Reader, req.Readers); err != nil {
		respondError(w, err)
		return
	}
	respond(w, s.Daemon.Exchange())
}

// A deadlined is a body of a request, of which each part has a time-out.
type deadlined struct {
	r    io.Reader
	conn *http.ResponseController
	left int
}

// Read implements io.Reader.
func (d *deadlined) Read(p []byte) (int, error) {
	if d.left <= 0 {
		d.left = 1 << 20
		d.conn.SetReadDeadline(time.Now().Add(exchangeTimeout))
	}
	n, err := d.r.Read(p)
	d.left -= n
	return n, err
}

// readFiles reads the body of an ExchangeRequest.
func readFiles(r io.Reader, sized bool) (*exchange.List, []int64, error) {
	var sizes []int64
	in := bufio.NewReaderSize(r, maxPath)
	text := func() (string, error) {
		b, err := in.ReadSlice(0)
		switch {
		case err == io.EOF && len(b) > 0:
			return "", io.ErrUnexpectedEOF
		case err == bufio.ErrBufferFull:
			return "", fmt.Errorf("a path has more than %d bytes", maxPath)
		case err != nil:
			return "", err
		}
		return string(b[:len(b)-1]), nil
	}
	var failure error
	files, err := exchange.NewList(func(yield func(string) bool) {
		for {
			name, err := text()
			if err == nil && (name == "." || !drivers.ValidName(name)) {
				err = fmt.Errorf("%q is not a path relative to the root of the mount", name)
			}
			if err == nil && sized {
				var size string
				if size, err = text(); err == nil {
					var n uint64
					if n, err = strconv.ParseUint(size, 10, 63); err != nil {
						err = fmt.Errorf("the size %q of %q is not a number", size, name)
					}
					sizes = append(sizes, int64(n))
				} else if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
			}
			if err != nil {
				if err != io.EOF {
					failure = err
				}
				return
			}
			if !yield(name) {
				return
			}
		}
	})
	if failure != nil {
		return nil, nil, failure
	}
	if err == nil && files.Len() == 0 {
		err = errors.New("there are no files")
	}
	return files, sizes, err
}

// beginEpoch serves POST /v1/exchange/epoch.
func (s *Server) beginEpoch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	epoch, reader, readers, err := parseEpoch(q)
	if err == nil {
		err = s.Daemon.BeginEpoch(q.Get("id"), epoch, reader, readers)
	}
	if err != nil {
		respondError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// getExchange serves GET /v1/exchange.
func (s *Server) getExchange(w http.ResponseWriter, _ *http.Request) { respond(w, s.Daemon.Exchange()) }

// stopExchange serves DELETE /v1/exchange.
func (s *Server) stopExchange(w http.ResponseWriter, _ *http.Request) {
	s.Daemon.StopExchange()
	w.WriteHeader(http.StatusNoContent)
}

// StartExchange sends an ExchangeRequest with a body, and returns the state of the exchange.
func (c *Client) StartExchange(ctx context.Context, r ExchangeRequest, body []byte) (stats placement.ExchangeStats, err error) {
	resp, err := c.do(ctx, http.MethodPost, "/v1/exchange?"+r.query().Encode(), body)
	if err != nil {
		return stats, err
	}
	defer resp.Body.Close()
	return stats, json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&stats)
}

// BeginEpoch tells the daemon that a reader begins an epoch of the exchange with an ID.
func (c *Client) BeginEpoch(ctx context.Context, id string, epoch, reader, readers int) error {
	q := url.Values{"id": {id}, "epoch": {strconv.Itoa(epoch)}, "reader": {strconv.Itoa(reader)}, "readers": {strconv.Itoa(readers)}}
	return c.post(ctx, http.MethodPost, "/v1/exchange/epoch?"+q.Encode())
}

// Exchange returns the state of the exchange.
func (c *Client) Exchange(ctx context.Context) (s placement.ExchangeStats, err error) {
	body, err := c.get(ctx, "/v1/exchange")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// StopExchange ends the exchange.
func (c *Client) StopExchange(ctx context.Context) error {
	return c.post(ctx, http.MethodDelete, "/v1/exchange")
}

// post makes a request without a body, and ignores that of the response.
func (c *Client) post(ctx context.Context, method, path string) error {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	resp, err := c.do(ctx, method, path, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
