package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// A Plan is the JSON of GET /v1/plan.
type Plan struct {
	placement.PlanStats
	Streams []placement.PlanStream `json:"streams"`
}

// Limits of POST /v1/plan.
const (
	maxPlan     = 64 << 20         // bytes in the body
	maxPaths    = 1_000_000        // paths in it
	maxPath     = 8 << 10          // bytes of a path that are read; placement refuses shorter ones
	planBatch   = 1024             // paths that the Guest gets at a time
	planBytes   = 1 << 20          // bytes after which it gets fewer
	planTimeout = 30 * time.Second // for the paths of a batch
)

// addPlan serves POST /v1/plan.
func (v view) addPlan(w http.ResponseWriter, r *http.Request) {
	part, err := planPart(r.URL.Query())
	if err != nil {
		respondError(w, err)
		return
	}
	body := bufio.NewReaderSize(http.MaxBytesReader(w, r.Body, maxPlan), maxPath)
	var result placement.PlanResult
	for first, n := true, 0; ; first = false {
		conn := http.NewResponseController(w)
		conn.SetReadDeadline(time.Now().Add(planTimeout))
		conn.SetWriteDeadline(time.Now().Add(planTimeout + writeTimeout))
		paths, err := readPaths(body)
		if n += len(paths); n > maxPaths {
			respondError(w, planError(fmt.Errorf("more than %d paths in one request; the first %d are planned", maxPaths, result.Accepted)))
			return
		}
		if err == nil || err == io.EOF && (first || len(paths) > 0) {
			more, err := v.Plan(part, paths)
			if err != nil {
				respondError(w, err)
				return
			}
			result.Add(more)
			part.From += int64(len(paths))
		}
		switch {
		case err == io.EOF:
			respond(w, result)
			return
		case errors.As(err, new(*http.MaxBytesError)):
			respondError(w, planError(fmt.Errorf("more than %d MiB in one request; the first %d paths are planned", maxPlan>>20, result.Accepted)))
			return
		case err != nil:
			respondError(w, planError(fmt.Errorf("the paths after the first %d: %w", result.Accepted+result.Rejected, err)))
			return
		}
	}
}

// readPaths reads up to planBatch paths, or fewer that have planBytes, each of which a NUL ends, except perhaps the
// last. At the end, the error is io.EOF. The end of a path that is too long is missing.
func readPaths(r *bufio.Reader) (paths []string, err error) {
	for size := 0; len(paths) < planBatch && size < planBytes; {
		p, err := r.ReadSlice(0)
		path := string(bytes.TrimSuffix(p, []byte{0}))
		for err == bufio.ErrBufferFull {
			_, err = r.ReadSlice(0)
		}
		if err == nil || err == io.EOF && path != "" {
			paths = append(paths, path)
			size += len(path)
		}
		if err != nil {
			return paths, err
		}
	}
	return paths, nil
}

// planPart returns the part of a plan that the parameters of a request name.
func planPart(q url.Values) (part placement.PlanPart, err error) {
	part.Stream = q.Get("stream")
	if !utf8.ValidString(part.Stream) {
		return part, planError(fmt.Errorf("the name of the stream, %q, is not UTF-8", part.Stream))
	}
	for name, value := range map[string]*int64{"epoch": &part.Epoch, "from": &part.From, "lead": &part.Lead} {
		if text := q.Get(name); text != "" {
			if *value, err = strconv.ParseInt(text, 10, 64); err != nil || *value < 0 {
				return part, planError(fmt.Errorf("%s: %q is not a number from 0 on", name, text))
			}
		}
	}
	return part, nil
}

// planError returns err as the error of a wrong request.
func planError(err error) error {
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("plan: %w", err)}
}

// getPlan serves GET /v1/plan.
func (v view) getPlan(w http.ResponseWriter, _ *http.Request) { respond(w, v.Plans()) }

// dropPlan serves DELETE /v1/plan.
func (v view) dropPlan(w http.ResponseWriter, r *http.Request) {
	if q := r.URL.Query(); q.Has("stream") {
		v.DropPlan(q.Get("stream"))
	} else {
		v.DropPlans()
	}
	w.WriteHeader(http.StatusNoContent)
}

// AddPlan sends entries of a plan.
func (c *Client) AddPlan(ctx context.Context, part placement.PlanPart, paths []string) (r placement.PlanResult, err error) {
	q := url.Values{
		"stream": {part.Stream}, "epoch": {strconv.FormatInt(part.Epoch, 10)},
		"from": {strconv.FormatInt(part.From, 10)}, "lead": {strconv.FormatInt(part.Lead, 10)},
	}
	var body bytes.Buffer
	for _, path := range paths {
		body.WriteString(path)
		body.WriteByte(0)
	}
	resp, err := c.do(ctx, http.MethodPost, "/v1/plan?"+q.Encode(), body.Bytes())
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	return r, json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&r)
}

// Plan returns the state of the plan.
func (c *Client) Plan(ctx context.Context) (p Plan, err error) {
	body, err := c.get(ctx, "/v1/plan")
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	return p, err
}

// DropPlan drops one stream of the plan, or all if stream is nil.
func (c *Client) DropPlan(ctx context.Context, stream *string) error {
	path := "/v1/plan"
	if stream != nil {
		path += "?" + url.Values{"stream": {*stream}}.Encode()
	}
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	resp, err := c.do(ctx, http.MethodDelete, path, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
