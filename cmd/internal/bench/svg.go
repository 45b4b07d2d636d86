package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// The picture has one bar for each side of a case, on a logarithmic axis. The bar
// shows the ratio of its time to that of the base side: a bar to the left of 1 is
// faster, one to the right is slower. All lengths are in pixels.
const (
	pictureWidth = 960
	barsLeft     = 150 // of the axis
	barsWidth    = 400
	lineHeight   = 16
	barHeight    = 10
	caseGap      = 4
)

// The picture has its own background, so that the colours look the same on light
// and dark pages.
const (
	background = "#ffffff"
	ink        = "#1f2328"
	faint      = "#d0d7de"
	ownBar     = "#bc4c00" // of Milkweed
	otherBar   = "#8c959f"
)

// A picture is an SVG picture that grows downwards.
type picture struct {
	body strings.Builder
	y    int     // of the current line
	low  float64 // exponent, to base 10, of the smallest ratio on the axis
	high float64 // exponent of the largest
}

// SVG writes the groups as an SVG picture. The output depends only on the groups.
func SVG(w io.Writer, groups []Group) error {
	p := &picture{y: 24}
	p.low, p.high = decades(groups)
	for _, g := range groups {
		p.group(g)
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>Time divided by the time of another side, on a logarithmic axis; below 1 is faster</title>
<rect width="%[1]d" height="%[2]d" fill="%s"/>
%s</svg>
`, pictureWidth, p.y, background, p.body.String())
	return err
}

// decades returns the exponents of the powers of ten that enclose all bars and 1.
func decades(groups []Group) (low, high float64) {
	low, high = -1, 1
	for _, g := range groups {
		for _, c := range g.Cases {
			base := c.base()
			for _, r := range c.Results {
				if s, ok := r.Ratios[base]; ok {
					low = min(low, math.Floor(math.Log10(s.Median)))
					high = max(high, math.Ceil(math.Log10(s.Median)))
				}
			}
		}
	}
	return low, high
}

// base returns the side with which the bars of a case are compared.
func (c *Case) base() string {
	for _, b := range bases {
		if slices.ContainsFunc(c.Results, func(r Result) bool { return r.Side == b }) {
			return b
		}
	}
	return ""
}

func (p *picture) group(g Group) {
	p.text(16, "start", "bold", g.Name)
	p.text(barsLeft, "start", "normal", "time divided by the time of the base side; left of 1 is faster")
	p.y += 8
	p.axis()
	for _, c := range g.Cases {
		p.y += lineHeight + caseGap
		p.text(16, "start", "600", fmt.Sprintf("%s, relative to %s", c.Name, c.base()))
		p.rules(len(c.Results))
		for _, r := range c.Results {
			p.bar(r, c)
		}
	}
	p.y += 36
}

// axis writes the ratios above a group.
func (p *picture) axis() {
	p.y += lineHeight
	for e := p.low; e <= p.high; e++ {
		fmt.Fprintf(&p.body, `<text x="%.1f" y="%d" text-anchor="middle" fill="%s" font-size="10">%g</text>`+"\n",
			p.x(math.Pow(10, e)), p.y, ink, math.Pow(10, e))
	}
	p.y += 4
}

// rules draws a vertical line for each ratio of the axis, behind the next bars.
func (p *picture) rules(bars int) {
	top, bottom := p.y+caseGap, p.y+caseGap+bars*lineHeight
	for e := p.low; e <= p.high; e++ {
		colour := faint
		if e == 0 {
			colour = ink
		}
		x := p.x(math.Pow(10, e))
		fmt.Fprintf(&p.body, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-width="0.5"/>`+"\n", x, top, x, bottom, colour)
	}
}

// bar draws the bar of a side, between its name and its numbers.
func (p *picture) bar(r Result, c Case) {
	p.y += lineHeight
	p.text(barsLeft-10, "end", "normal", r.Side)
	if s, ok := r.Ratios[c.base()]; ok {
		from, to := p.x(1), p.x(s.Median)
		if to < from {
			from, to = to, from
		}
		fmt.Fprintf(&p.body, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			from, p.y-barHeight+1, max(to-from, 1), barHeight, colour(r.Side))
	}
	p.text(barsLeft+barsWidth+12, "start", "normal", strings.Join(labels(r, c), ", "))
}

// labels returns the numbers of a side.
func labels(r Result, c Case) []string {
	all := []string{number(r.Value) + " " + string(c.Unit)}
	if r.Utilization != nil {
		all = append(all, "AU "+r.utilization())
	}
	for _, b := range bases {
		if s, ok := r.Ratios[b]; ok {
			all = append(all, fmt.Sprintf("%.2f × %s", s.Median, b))
		}
	}
	return all
}

// colour returns the colour of the bar of a side.
func colour(side string) string {
	if isBase(side) || side == StageIn {
		return otherBar
	}
	return ownBar
}

// x returns the position of a ratio on the axis.
func (p *picture) x(ratio float64) float64 {
	return barsLeft + barsWidth*(math.Log10(ratio)-p.low)/(p.high-p.low)
}

// text writes a text on the current line.
func (p *picture) text(x int, anchor, weight, s string) {
	fmt.Fprintf(&p.body, `<text x="%d" y="%d" text-anchor="%s" font-weight="%s" fill="%s">`, x, p.y, anchor, weight, ink)
	xml.EscapeText(&p.body, []byte(s))
	p.body.WriteString("</text>\n")
}
